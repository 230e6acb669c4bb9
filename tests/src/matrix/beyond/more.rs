//! More Services that are there from the start: several addresses, addresses of others, SCTP, labels.

use anyhow::Result;
use serde_json::{Value, json};

use super::published::{Objects, a2, b2};
use crate::matrix::objects::{PORTS, SlicePort, service};
use crate::matrix::question::{Destination, PORT, addresses, node_port};
use crate::rig::TARGET;
use crate::topology::Family;
use crate::topology::address::{self, Segment};

/// Services of SCTP with one endpoint each: on `node-a`, on `node-b`.
pub const SCTP: [u8; 2] = [137, 138];
/// The second addresses of load balancers that have two, after the numbers of their Services.
pub(super) const SECOND_VIPS: [(u8, u8); 2] = [(129, 229), (131, 231)];
/// The Service whose `NodePort` is another's external port.
pub(super) const SHADOWED: u8 = 135;
/// Label of what belongs to a headless Service.
pub(super) const HEADLESS: &str = "service.kubernetes.io/headless";

/// Services that change while they are asked: their `NodePort`, port, type, ranges, external addresses.
pub(super) const CHANGING: [u8; 5] = [142, 143, 144, 145, 146];
/// The port and `NodePort` that some of them change to.
pub(super) const OTHER: (u16, u16) = (81, 30_087);

pub(super) fn objects(all: &mut Objects) -> Result<()> {
    several_addresses(all)?;
    for number in CHANGING {
        let both = [a2(&json!({}))?, b2(&json!({}))?];
        all.add((number, &changing(number)), &json!({}), &both)?;
    }
    sctp(all)
}

fn changing(number: u8) -> String {
    format!("changing-{number}")
}

/// What becomes of the Services that change: their names, and what is laid over them.
pub(super) fn changes() -> [(String, Value); 5] {
    let ports = |port: u16, node_port: u16| {
        let port = |(name, protocol, _): SlicePort<'_>| {
            json!({
                "name": name, "protocol": protocol.name(), "port": port, "targetPort": TARGET,
                "nodePort": node_port,
            })
        };
        json!({"spec": {"ports": PORTS.map(port)}})
    };
    let (port, other) = OTHER;
    let [of_node_port, of_port, of_type, of_ranges, of_addresses] = CHANGING;
    [
        (of_node_port, ports(PORT, other)),
        (of_port, ports(port, node_port(of_port))),
        (of_type, json!({"spec": {"type": "ClusterIP"}})),
        (of_ranges, json!({"spec": {"loadBalancerSourceRanges": of_client()}})),
        (of_addresses, json!({"spec": {"externalIPs": null}})),
    ]
    .map(|(number, change)| (changing(number), change))
}

/// Services with two load balancer addresses, and one whose external IP and port are another's `NodePort`.
fn several_addresses(all: &mut Objects) -> Result<()> {
    let plain = json!({});
    let both = [a2(&plain)?, b2(&plain)?];
    for ((number, second), ranges) in SECOND_VIPS.into_iter().zip([json!(null), of_client()]) {
        let first = addresses(Destination::Vip, number)?.both();
        let all_of_it = first.into_iter().chain(addresses(Destination::Vip, second)?.both());
        let ingress: Vec<Value> = all_of_it.map(|ip| json!({"ip": ip})).collect();
        let more = json!({
            "spec": {"loadBalancerSourceRanges": ranges},
            "status": {"loadBalancer": {"ingress": ingress}},
        });
        all.add((number, &format!("vips-{number}")), &more, &both)?;
    }
    let own = Segment::First.host(address::node(1))?.both();
    let port = |(name, protocol, _): SlicePort<'_>| {
        let (number, own) = (node_port(SHADOWED), node_port(134));
        json!({"name": name, "protocol": protocol.name(), "port": number, "nodePort": own})
    };
    let shadow = json!({"spec": {"externalIPs": own, "ports": PORTS.map(port)}});
    all.add((134, "shadow"), &shadow, &[b2(&plain)?])?;
    all.add((SHADOWED, "shadowed"), &plain, &[a2(&plain)?])?;
    // Slices that will be labelled as those of a headless Service, and a Service that is, which has an address.
    all.add((132, "relabelled"), &plain, &[])?;
    all.slices("relabelled-here", "relabelled", &PORTS, &[a2(&plain)?]);
    all.slices("relabelled-there", "relabelled", &PORTS, &[b2(&plain)?]);
    let label = json!({"metadata": {"labels": {HEADLESS: ""}}});
    all.add((133, "labelled-headless"), &label, &both)
}

/// The ranges of the client outside.
fn of_client() -> Value {
    json!(["192.168.50.100/32", "fd00:50::100/128"])
}

/// A port of SCTP alone: no slice of the others has it.
fn sctp(all: &mut Objects) -> Result<()> {
    let plain = json!({});
    for (number, (at, _)) in SCTP.into_iter().zip([a2(&plain)?, b2(&plain)?]) {
        let name = format!("sctp-{number}");
        let ports = json!([{
            "name": "sctp", "protocol": "SCTP", "port": PORT, "nodePort": node_port(number),
        }]);
        let more = json!({"metadata": {"name": name}, "spec": {"ports": ports}});
        all.0.push(service(&name, number, &more)?);
        for family in Family::ALL {
            let node = if number == SCTP[0] { "node-a" } else { "node-b" };
            all.0.push(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "name": format!("{name}-{}", family.name().to_lowercase()),
                    "namespace": "default", "labels": {"kubernetes.io/service-name": name},
                },
                "addressType": family.name(),
                "ports": [{"name": "sctp", "protocol": "SCTP", "port": TARGET}],
                "endpoints": [{"addresses": [at.of(family)], "nodeName": node}],
            }));
        }
    }
    Ok(())
}
