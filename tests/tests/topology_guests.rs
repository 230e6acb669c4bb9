//! Clients of a node that are not pods: a network that a pod routes for (a VPN), and a container of another container
//! engine or a virtual machine, behind a bridge of its own. Only this node has a route back to them.

use anyhow::{Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Addresses, Shape, Topology, Tunnel};
use lb_tests::traffic::Ask;

in_both_shapes!(
    guests_of_a_pod_reach_near_and_far_backends,
    guests_behind_a_bridge_reach_near_and_far_backends,
    machines_behind_a_bridge_reach_near_and_far_backends,
    pods_keep_their_source,
);

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

/// How a guest is connected to its bridge.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wire {
    /// By a veth, as a container is.
    Veth,
    /// By a tap, as a virtual machine is.
    Tap,
}

/// Connects a guest to a bridge of node-a: the second interface of a pod's namespace, which answers for the guest.
fn bridge(rig: &Rig, wire: Wire) -> Result<(Addresses, Option<Tunnel>)> {
    let (node, pod) = (rig.node(0)?, rig.pod(0, 0)?);
    let guest = Addresses::parse("172.29.1.7", "fd00:172:29:1::7")?;
    let (gateway4, gateway6) = ("172.29.1.1", "fd00:172:29:1::1");
    let cable = if wire == Wire::Tap {
        Some(Tunnel::cable([(node.netns(), "guest"), (pod.netns(), "eth1")])?)
    } else {
        let pod = pod.netns().name();
        node.netns().ip(&format!("link add guest type veth peer name eth1 netns {pod}"))?;
        None
    };
    node.netns().ip(&format!(
        "link add docker0 address 0a:58:ac:1d:01:01 type bridge
         address add {gateway4}/24 dev docker0
         address add {gateway6}/64 dev docker0 nodad
         link set docker0 up
         link set guest master docker0 up"
    ))?;
    pod.netns().ip(&format!(
        "address add {v4}/24 dev eth1
         address add {v6}/64 dev eth1 nodad
         link set eth1 up
         route add default via {gateway4} dev eth1 table 100
         route add default via {gateway6} dev eth1 table 100
         rule add from {v4} table 100",
        v4 = guest.v4,
        v6 = guest.v6
    ))?;
    let from = guest.v6.to_string();
    drop(pod.netns().tool("ip", &["-6", "rule", "add", "from", &from, "table", "100"])?);
    Ok((guest, cable))
}

/// Masquerades what leaves the bridge, as Docker does.
const MASQUERADE: &str = "table inet docker { chain postrouting {
    type nat hook postrouting priority srcnat;
    ip saddr 172.29.1.0/24 oifname != docker0 masquerade
    ip6 saddr fd00:172:29:1::/64 oifname != docker0 masquerade
}; }";

fn guests_behind_a_bridge_reach_near_and_far_backends(shape: Shape) -> Result<()> {
    guests_reach_near_and_far_backends(shape, Wire::Veth)
}

fn machines_behind_a_bridge_reach_near_and_far_backends(shape: Shape) -> Result<()> {
    guests_reach_near_and_far_backends(shape, Wire::Tap)
}

/// A near backend sees the guest, a far one the node, unless netfilter masquerades both. `br_netfilter` gives packets to
/// netfilter before the programs of a bridge see them, but after those of its ports.
fn guests_reach_near_and_far_backends(shape: Shape, wire: Wire) -> Result<()> {
    let rig = Rig::build(Topology::builder(shape))?;
    let (guest, _cable) = bridge(&rig, wire)?;
    let services = services(&rig)?;
    let rig = rig.start(&[&services[0], &services[1]])?;
    let node = rig.node(0)?;
    let of_node = |at: usize, family| {
        let node_port = node.addresses().socket(family, NODE_PORTS[at]);
        [services[at].frontend(family), node_port].map(|asked| (at, asked))
    };
    for is_masqueraded in [false, true] {
        if is_masqueraded {
            drop(node.netns().tool_fed("nft", &["-f", "-"], MASQUERADE)?);
        }
        for (family, protocol) in matrix() {
            for (at, asked) in [of_node(0, family), of_node(1, family)].concat().repeat(4) {
                let question = Ask::new(protocol, asked).from(guest.socket(family, 0));
                let answer = ask(rig.pod(0, 0)?, question)?;
                let what = format!("masqueraded: {is_masqueraded}, {answer:?}");
                ensure!(answer.peer == asked, "{what}");
                ensure!(answer.server == rig.pod(at, 1)?.name(), "{what}");
                let seen = if at == 0 { guest } else { node.addresses() };
                ensure!(is_masqueraded || answer.client.ip() == seen.of(family), "{what}");
            }
        }
    }
    Ok(())
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
