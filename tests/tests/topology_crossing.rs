//! Replies to a pod that cross another network of the node before they reach the pod's interface, as with the switch of
//! a CNI plugin, or a network interface of the cloud for each pod. That network sees both directions of a flow with the
//! backend's address: it would drop packets that belong to no connection.

use anyhow::{Context as _, Result, ensure};
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::netns::Netns;
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Addresses, Shape, Topology};
use lb_tests::traffic::Ask;

const NODE_PORT: u16 = 30_080;

/// Makes a network that packets to the pod cross: they leave by `cross0`, and return by `cross1`. It counts packets
/// whose source is no backend, and drops them.
fn cross(rig: &Rig) -> Result<Netns> {
    let (node, pod) = (rig.node(0)?, rig.pod(0, 0)?);
    let netns = node.netns();
    let network = Netns::new(&format!("{}-crossed", netns.name()))?;
    let Addresses { v4, v6 } = pod.addresses();
    netns.ip(&format!(
        "link add cross0 type veth peer name in netns {network}
         link add cross1 type veth peer name out netns {network}
         address add 172.30.0.1/24 dev cross0
         address add fd00:172:30::1/64 dev cross0 nodad
         address add 172.30.1.1/24 dev cross1
         address add fd00:172:30:1::1/64 dev cross1 nodad
         link set cross0 up
         link set cross1 up",
        network = network.name()
    ))?;
    network.ip("address add 172.30.0.2/24 dev in
         address add fd00:172:30::2/64 dev in nodad
         address add 172.30.1.2/24 dev out
         address add fd00:172:30:1::2/64 dev out nodad
         link set in up
         link set out up
         route add default via 172.30.1.1
         route add default via fd00:172:30:1::1")?;
    for (netns, name) in [
        (netns, "net.ipv4.conf.cross1.accept_local"),
        (&network, "net.ipv4.ip_forward"),
        (&network, "net.ipv6.conf.all.forwarding"),
    ] {
        netns.sysctl(name, "1")?;
    }
    let device = pod.device();
    // The way to the pod is not the way back.
    for interface in ["all", device, "cross0", "cross1"] {
        netns.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "0")?;
    }
    for family in ["-4", "-6"] {
        drop(netns.tool("ip", &[family, "rule", "add", "iif", "cross1", "lookup", "77"])?);
    }
    netns.ip(&format!(
        "route add {v4} dev {device} table 77
         route add {v6} dev {device} table 77
         route replace {v4} via 172.30.0.2 dev cross0
         route replace {v6} via fd00:172:30::2 dev cross0"
    ))?;
    // The port of every frontend is 80 or the NodePort, and no backend has it.
    let rules = format!(
        "table inet t {{ chain c {{ type filter hook forward priority 0;
           meta l4proto {{ tcp, udp }} th sport {{ 80, {NODE_PORT} }} counter drop
           meta l4proto {{ tcp, udp }} th sport {TARGET} counter accept
         }}; }}"
    );
    drop(network.tool_fed("nft", &["-f", "-"], &rules)?);
    Ok(network)
}

#[test]
fn reply_to_a_pod_crosses_another_network_with_the_backends_address() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed))?;
    let near = Service::new("near", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(NODE_PORT);
    let far = far.pods(&[rig.pod(1, 1)?]);
    let host = Service::new("host", 12)?.port(80, TARGET);
    let host = host.endpoints([Endpoint::host(rig.node(0)?)]);
    let services = [near, far, host];
    let network = cross(&rig)?;
    services.iter().try_for_each(|service| rig.manifests().apply(service))?;
    let config = rig.configuration("externalDevices: [eth0, cross0, cross1]")?;
    rig.start_agents(&[&config])?;
    let pod = rig.pod(0, 0)?;
    for (family, protocol) in matrix() {
        let frontends = services.iter().map(|service| service.frontend(family));
        let node_port = rig.node(0)?.addresses().socket(family, NODE_PORT);
        for frontend in frontends.chain([node_port]) {
            let asks = || format!("{protocol:?} to {frontend}");
            let flow = pod.peer().keep(Ask::new(protocol, frontend)).with_context(asks)?;
            for _ in 0..3 {
                let answer = flow.ask().with_context(asks)?;
                ensure!(answer.peer == frontend, "{answer:?}");
            }
        }
        drop(ask(pod, Ask::new(protocol, rig.pod(1, 1)?.addresses().socket(family, TARGET)))?);
    }
    let rules = network.tool("nft", &["list", "ruleset"])?;
    let of_none = "counter packets 0 bytes 0 ";
    ensure!(rules.matches(of_none).count() == 1, "{rules}");
    ensure!(rules.contains(&format!("{of_none}drop")), "{rules}");
    Ok(())
}
