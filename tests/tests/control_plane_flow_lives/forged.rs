//! Forged SYN, FIN and RST segments in open connections of Services that have got more endpoints since: a proxy that
//! began such a connection again would choose a backend for it, mostly another one.

use std::net::SocketAddr;

use anyhow::Result;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{TARGET, until};
use lb_tests::topology::{Family, Member};
use lb_tests::traffic::{Ask, Attacked};

use super::Life;

const NAMES: [&str; 2] = ["life-forged-near", "life-forged-far"];
const NODE_PORTS: [u16; 2] = [30_065, 30_066];

/// Connections by `ClusterIP` of a pod, and by `NodePort` of a client outside, to a near and to a far backend.
///
/// With four endpoints a new choice is the old one in a quarter of the cases: once in 65,536 runs for all eight
/// connections.
pub(crate) fn move_no_connection(life: &Life<'_>) -> Result<()> {
    let rig = life.rig();
    let backends = [rig.pod(0, 1)?, rig.pod(1, 1)?];
    let (mut few, mut many) = (Vec::new(), Vec::new());
    for (((name, index), number), backend) in
        NAMES.into_iter().zip(220..).zip(NODE_PORTS).zip(backends)
    {
        let service = Service::new(name, index)?.port(80, TARGET).node_port(number);
        few.push(service.clone().pods(&[backend]));
        let hosts = rig.topology().nodes().iter().map(Endpoint::host);
        many.push(service.endpoints(backends.map(Endpoint::pod).into_iter().chain(hosts)));
    }
    publish(life, &few)?;
    let mut open = Vec::new();
    for (service, number) in few.iter().zip(NODE_PORTS) {
        open.extend(Attacked::open_all(rig, service, number)?);
    }
    publish(life, &many)?;
    for ((service, number), backend) in many.iter().zip(NODE_PORTS).zip(backends) {
        for family in Family::ALL {
            let outside = rig.node(0)?.addresses().socket(family, number);
            let asked: [(&Member, SocketAddr); 2] =
                [(rig.pod(0, 0)?, service.frontend(family)), (rig.client(), outside)];
            for (from, to) in asked {
                until(from, Ask::tcp(to), |outcome| {
                    outcome.as_ref().is_ok_and(|answer| answer.server != backend.name())
                })?;
            }
        }
    }
    for connection in &open {
        connection.forge(rig.pod(0, 1)?)?;
    }
    open.iter().try_for_each(Attacked::goes_on)?;
    // The next world begins with one backend each again.
    publish(life, &few)
}

fn publish(life: &Life<'_>, services: &[Service]) -> Result<()> {
    life.server.publish(&services.iter().flat_map(Service::objects).collect::<Vec<_>>())
}
