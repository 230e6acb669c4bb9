//! Protocols besides TCP and UDP: pings of a `ClusterIP`, and associations of SCTP.

use anyhow::{Result, ensure};
use lb_tests::manifest::Service;
use lb_tests::rig::TARGET;
use lb_tests::topology::{Family, Member};
use lb_tests::traffic::{Sctp, ping};
use serde_json::{Value, json};

use super::world::World;

const NODE_PORT: u16 = 30_083;

/// Pods ping the `ClusterIP` of a Service; with `echo: reject`, the pings are refused.
pub(crate) fn pings_are_answered(world: &World, are_answered: bool) -> Result<()> {
    let [near, ..] = &world.served;
    for family in Family::ALL {
        for node in [0, 1] {
            let pod = world.rig.pod(node, 0)?;
            let outcome = ping(pod, near.service.frontend(family).ip(), 56);
            if are_answered {
                outcome?;
            } else {
                let error = outcome.err().map(|error| format!("{error:#}")).unwrap_or_default();
                ensure!(error.contains("refused"), "{} hears {error:?}", pod.name());
            }
        }
    }
    Ok(())
}

/// Pods, the host and an external client associate with a pod of the other node and with a pod of this node.
pub(crate) fn associations_are_made(world: &World) -> Result<()> {
    let rig = &world.rig;
    for (number, server) in [(0, rig.pod(0, 1)?), (1, rig.pod(1, 1)?)] {
        let node_port = NODE_PORT + number;
        let service = Service::new(&format!("sctp-{number}"), 16 + number as u8)?.port(80, TARGET);
        let service = service.node_port(node_port).pods(&[server]);
        rig.manifests().write(&format!("sctp-{number}"), &by_sctp(service.objects()))?;
        rig.until_programmed()?;
        for family in Family::ALL {
            let cluster = service.frontend(family);
            let outer = rig.node(0)?.addresses().socket(family, node_port);
            let asked: [(&Member, _); 4] = [
                (rig.pod(0, 0)?, cluster),
                (rig.node(0)?.host(), cluster),
                (rig.pod(1, 0)?, outer),
                (rig.client(), outer),
            ];
            for (port, (from, to)) in (26_000 + 10 * number..).zip(asked) {
                let own = Sctp::open(from, from.addresses().socket(family, port))?;
                let there = Sctp::open(server, server.addresses().socket(family, TARGET))?;
                let _seen_by_server = own.associate(&there, to)?;
            }
        }
    }
    Ok(())
}

/// A Service and its slices with SCTP in place of the first port's protocol, and without other ports.
fn by_sctp(mut objects: Vec<Value>) -> Vec<Value> {
    for object in &mut objects {
        for place in ["/spec/ports", "/ports"] {
            if let Some(ports) = object.pointer_mut(place).and_then(Value::as_array_mut) {
                ports.truncate(1);
                for port in ports {
                    port["protocol"] = json!("SCTP");
                }
            }
        }
    }
    objects
}
