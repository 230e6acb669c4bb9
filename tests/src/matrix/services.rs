//! The Services of the matrix, in every state that matters (contract 2.4).

use anyhow::Result;
use serde_json::{Value, json};

use super::question::{
    Destination, PORT, PROXIED, PROXIED_SERVICE, Policy, State, addresses, name, node_port, number,
};
use crate::manifest::{Endpoint, Service};
use crate::rig::TARGET;
use crate::topology::{Segment, address};

/// All Services of the matrix, with their slices.
pub fn services() -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for policy in Policy::ALL {
        for state in State::ALL {
            let number = number(policy, state);
            let vips = addresses(Destination::Vip, number)?.both();
            let mut service = Service::new(&name(policy, state), number)?
                .port(PORT, TARGET)
                .node_port(node_port(number))
                .load_balancer(&vips, &[])
                .external_ips(&addresses(Destination::ExternalIp, number)?.both())
                .endpoints(endpoints(state)?);
            if policy == Policy::Local {
                service = service.external_policy_local().internal_policy_local();
            }
            let mut these = service.objects();
            if let Some(object) = these.first_mut() {
                // Without a selector, the endpoint slice controller does not write slices for it.
                drop(object["spec"].as_object_mut().and_then(|spec| spec.remove("selector")));
                let ingress = object["status"]["loadBalancer"]["ingress"].as_array_mut();
                if let Some(ingress) = ingress.filter(|_| (policy, state) == PROXIED_SERVICE) {
                    ingress.extend(PROXIED.both().map(|ip| json!({"ip": ip, "ipMode": "Proxy"})));
                }
            }
            objects.extend(these);
        }
    }
    Ok(objects)
}

fn endpoints(state: State) -> Result<Vec<Endpoint>> {
    let here = Endpoint::at(address::pod(1, 2)?, "node-a");
    let there = Endpoint::at(address::pod(2, 2)?, "node-b");
    let host = |node, name| -> Result<Endpoint> {
        Ok(Endpoint::at(Segment::First.host(address::node(node))?, name))
    };
    Ok(match state {
        State::Both => vec![here, there],
        State::Remote => vec![there],
        State::LocalDraining => vec![here.terminating(true), there],
        State::Draining => vec![here.terminating(true), there.terminating(true)],
        State::RemoteDraining => vec![there.terminating(true)],
        State::Unready => vec![here.not_ready_but_serving(), there.not_ready_but_serving()],
        State::Hosts => vec![host(1, "node-a")?, host(2, "node-b")?],
    })
}
