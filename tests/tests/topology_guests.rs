//! Clients behind pod interfaces that are not pods: a network that a pod routes for (a VPN), and a container of another
//! container engine. Only this node has a route back to them.

use anyhow::{Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Addresses, Shape};
use lb_tests::traffic::Ask;

in_both_shapes!(guests_of_a_pod_reach_near_and_far_backends, pods_keep_their_source);

const NODE_PORTS: [u16; 2] = [30_080, 30_081];

/// Addresses of a network to which no other node has a route.
fn guest() -> Result<Addresses> {
    Addresses::parse("172.29.0.7", "fd00:172:29::7")
}

/// A Service for each node, with the pod of that node that is not a client here.
fn services(rig: &Rig) -> Result<[Service; 2]> {
    let service = |node: usize, port: u16| -> Result<Service> {
        let name = format!("node-{node}");
        let number = 10 + node as u8;
        let pods = [rig.pod(node, 1)?];
        Ok(Service::new(&name, number)?.port(80, TARGET).node_port(port).pods(&pods))
    };
    let [near, far] = NODE_PORTS;
    Ok([service(0, near)?, service(1, far)?])
}

fn guests_of_a_pod_reach_near_and_far_backends(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let services = services(&rig)?;
    let rig = rig.start(&[&services[0], &services[1]])?;
    let (node, pod, guest) = (rig.node(0)?, rig.pod(0, 0)?, guest()?);
    let Addresses { v4, v6 } = pod.addresses();
    pod.netns().ip(&format!(
        "address add {}/32 dev lo\naddress add {}/128 dev lo nodad",
        guest.v4, guest.v6
    ))?;
    node.netns()
        .ip(&format!("route replace {} via {v4}\nroute replace {} via {v6}", guest.v4, guest.v6))?;
    for (family, protocol) in matrix() {
        let ports = NODE_PORTS.map(|port| node.addresses().socket(family, port));
        let asked = services.iter().map(|service| service.frontend(family)).chain(ports);
        for asked in asked {
            for _ in 0..4 {
                let question = Ask::new(protocol, asked).from(guest.socket(family, 0));
                let answer = ask(pod, question)?;
                ensure!(answer.peer == asked, "{answer:?}");
            }
        }
    }
    pod.netns()
        .ip(&format!("address del {}/32 dev lo\naddress del {}/128 dev lo", guest.v4, guest.v6))?;
    node.netns().ip(&format!("route del {}\nroute del {}", guest.v4, guest.v6))
}

fn pods_keep_their_source(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let services = services(&rig)?;
    let rig = rig.start(&[&services[0], &services[1]])?;
    let pod = rig.pod(0, 0)?;
    for (family, protocol) in matrix() {
        for service in &services {
            let answer = ask(pod, Ask::new(protocol, service.frontend(family)))?;
            ensure!(answer.client.ip() == pod.addresses().socket(family, 0).ip(), "{answer:?}");
        }
    }
    Ok(())
}
