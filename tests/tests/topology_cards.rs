//! All network interfaces of a node, not only the one with the Node's address: a second one that leads to pods of other
//! nodes (macvlan, VLAN, bond), and one that only a nexthop object or a direct route names.
//!
//! The second veth of a pod counts as a pod's interface.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use lb_agent::datapath::Direction;
use lb_tests::kinds::Kind;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, askers, matrix};
use lb_tests::topology::{Addresses, Family, Member, Node, Segment, Shape, Topology};
use lb_tests::traffic::{Ask, PAUSE};
use lb_tests::wait::wait_until_ok;

const NODE_PORT: u16 = 30_080;
const SOON: Duration = Duration::from_secs(30);
/// The name of the new interface. It is no veth, so the agent treats it like a hardware interface.
const CARD: &str = "card1";
/// The last parts of the nodes' addresses.
const HOSTS: [u8; 2] = [11, 12];

/// Creates a new interface over an existing one. Only below a VLAN does the lower interface keep its addresses.
fn put_card(node: &Node, kind: Kind, device: &str) -> Result<()> {
    let lines = match kind {
        Kind::MacVlan => format!(
            "address flush dev {device}\n\
             link add {CARD} link {device} type macvlan mode bridge"
        ),
        Kind::Vlan => format!("link add {CARD} link {device} type vlan id 7"),
        Kind::Bond => format!(
            "address flush dev {device}\n\
             link add {CARD} type bond mode active-backup miimon 100\n\
             link set dev {device} down\n\
             link set dev {device} master {CARD}"
        ),
        Kind::IpVlan | Kind::Dummy | Kind::Netkit => bail!("{kind:?} leads nowhere"),
    };
    node.netns().ip(&format!("{lines}\nlink set dev {CARD} up"))?;
    wait_until_ok(SOON, "the interface is up", || {
        let line = node.netns().tool("ip", &["-brief", "link", "show", "dev", CARD])?;
        ensure!(line.split_whitespace().nth(1) == Some("UP"), "{line}");
        Ok(())
    })
}

fn is_external(rig: &Rig, device: &str) -> Result<()> {
    wait_until_ok(SOON, "the interface has the programs of an external one", || {
        let status = rig.agent(0)?.exit_said(&["status"])?;
        let words = status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let words: Vec<_> = words.filter(|words| words.first() == Some(&"Interface")).collect();
        let expected = ["Interface", device, "external", "attached"];
        ensure!(words.iter().any(|words| words.starts_with(&expected)), "{status}");
        // A veth below the new interface carries its packets and must not count as a pod's interface.
        let is_pods =
            |words: &[&str]| matches!(words, [_, device, "pod", ..] if device.starts_with("eth"));
        ensure!(!words.iter().any(|words| is_pods(words)), "{status}");
        ensure!(!status.contains("no programs"), "{status}");
        Ok(())
    })
}

mod card_to_the_pods_of_other_nodes_is_served {
    use super::{Kind, Result, serves_by_a_card};

    #[test]
    fn macvlan() -> Result<()> {
        serves_by_a_card(Kind::MacVlan)
    }

    #[test]
    fn vlan() -> Result<()> {
        serves_by_a_card(Kind::Vlan)
    }

    #[test]
    fn bond() -> Result<()> {
        serves_by_a_card(Kind::Bond)
    }
}

/// The new interface leads to the pods of the other node over a private network, without an address of the Node object
/// and without a default route. A VLAN lies over the interface with the Node's address, so that a packet passes the
/// programs of both.
fn serves_by_a_card(kind: Kind) -> Result<()> {
    if kind.is_skipped()? {
        return Ok(());
    }
    let topology = Topology::builder(Shape::Routed);
    let (topology, device) = if kind == Kind::Vlan {
        (topology.rp_filter(1), "eth0")
    } else {
        (topology.rp_filter(2).two_segments(), "eth1")
    };
    let mut rig = Rig::build(topology)?;
    for (index, host) in HOSTS.into_iter().enumerate() {
        let (node, Addresses { v4, v6 }) = (rig.node(index)?, Segment::Second.host(host)?);
        put_card(node, kind, device)?;
        node.netns()
            .ip(&format!("address add {v4}/24 dev {CARD}\naddress add {v6}/64 dev {CARD} nodad"))?;
    }
    for (index, host) in HOSTS.into_iter().rev().enumerate() {
        let [pods4, pods6] = rig.node(1 - index)?.pod_ranges();
        let Addresses { v4, v6 } = Segment::Second.host(host)?;
        rig.node(index)?.netns().ip(&format!(
            "route replace {pods4} via {v4} dev {CARD}\nroute replace {pods6} via {v6} dev {CARD}"
        ))?;
    }
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.pods(&[rig.pod(1, 0)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(&[])?;
    is_external(&rig, CARD)?;
    for (family, protocol) in matrix() {
        let node_port = rig.node(0)?.addresses().socket(family, NODE_PORT);
        for _ in 0..5 {
            drop(ask(rig.client(), Ask::new(protocol, node_port).within(2_000))?);
        }
    }
    asks_by_every_route(&rig, &web)?;
    let mut loads = Vec::new();
    for (from, question) in askers(&rig, &web, NODE_PORT)? {
        for kept in [true, false] {
            let load = from.peer().load(question, kept, PAUSE)?;
            loads.push((format!("{} asks {question:?}, kept: {kept}", from.name()), load));
        }
    }
    for (what, load) in loads {
        drop(load.finish_without_loss().context(what)?);
    }
    Ok(())
}

/// A process of the first node asks by packets: the interface by which the frontend is routed, and receives the reply,
/// is the new one, the other one, or `lo`. The reply comes in by the new one.
fn asks_by_every_route(rig: &Rig, web: &Service) -> Result<()> {
    let node = rig.node(0)?;
    let asks = |what: &str| -> Result<()> {
        for family in [Family::V4, Family::V6] {
            let own = node.addresses().socket(family, NODE_PORT);
            for to in [web.frontend(family), own] {
                for _ in 0..3 {
                    let answer = ask(node, Ask::udp(to).within(2_000));
                    drop(answer.with_context(|| format!("{to}, the ClusterIP routed by {what}"))?);
                }
            }
        }
        Ok(())
    };
    asks("its own route")?;
    let Addresses { v4, v6 } = Segment::Second.host(HOSTS[1])?;
    let by_card = |verb: &str| {
        node.netns().ip(&[Family::V4, Family::V6]
            .map(|family| {
                let via = if family == Family::V4 { v4.to_string() } else { v6.to_string() };
                format!("route {verb} {} via {via} dev {CARD}", web.frontend(family).ip())
            })
            .join("\n"))
    };
    by_card("replace")?;
    asks(CARD)?;
    by_card("delete")
}

mod card_that_only_nexthop_objects_name_is_served {
    use super::{Kind, Result, serves_by_nexthop_objects};

    #[test]
    fn addresses_on_lo() -> Result<()> {
        serves_by_nexthop_objects("lo")
    }

    #[test]
    fn addresses_on_a_dummy() -> Result<()> {
        if Kind::Dummy.is_skipped()? {
            return Ok(());
        }
        serves_by_nexthop_objects("dummy1")
    }
}

/// Routes as FRR writes them: the Node's addresses are on `lo` or on a dummy interface, and routes name nexthop objects
/// instead of an interface. They lead outside and to the pods of the other node.
fn serves_by_nexthop_objects(home: &str) -> Result<()> {
    const LINK_LOCAL: &str = "fe80::a11";
    let mut rig = Rig::build(Topology::builder(Shape::Routed))?;
    let (node, other) = (rig.node(0)?, rig.node(1)?);
    let (own, far, gateway) = (node.addresses(), other.addresses(), Segment::First.gateway()?);
    let [pods4, pods6] = other.pod_ranges();
    node.netns().sysctl("net.ipv4.nexthop_compat_mode", "0")?;
    put_card(node, Kind::MacVlan, "eth0")?;
    if home != "lo" {
        node.netns().ip(&format!("link add {home} type dummy\nlink set dev {home} up"))?;
    }
    node.netns().ip(&format!(
        "address add {LINK_LOCAL}/64 dev {CARD} nodad
         address add {}/32 dev {home}\naddress add {}/128 dev {home} nodad
         route add 192.168.50.0/24 dev {CARD} src {}\nroute add fd00:50::/64 dev {CARD} src {}
         nexthop add id 7 via {} dev {CARD}\nnexthop add id 8 via {} dev {CARD}
         nexthop add id 17 via {} dev {CARD}\nnexthop add id 18 via {} dev {CARD}
         route replace 0.0.0.0/0 nhid 7 src {}\nroute replace ::/0 nhid 8 src {}
         route replace {pods4} nhid 17\nroute replace {pods6} nhid 18",
        own.v4, own.v6, own.v4, own.v6, gateway.v4, gateway.v6, far.v4, far.v6, own.v4, own.v6
    ))?;
    // No machine answers neighbour solicitations for an IPv6 address of its `lo`.
    for neighbour in [rig.client(), other.host()] {
        let route = format!("route add {}/128 via {LINK_LOCAL} dev eth0", own.v6);
        neighbour.netns().ip(&route)?;
    }
    let [_, own_pods6] = node.pod_ranges();
    other.netns().ip(&format!("route replace {own_pods6} via {LINK_LOCAL} dev eth0"))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.pods(&[rig.pod(0, 0)?, rig.pod(1, 0)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(&[])?;
    is_external(&rig, CARD)?;
    for (family, protocol) in matrix() {
        let mut servers = BTreeSet::new();
        for _ in 0..20 {
            let node_port = rig.node(0)?.addresses().socket(family, NODE_PORT);
            let askers: [(&Member, _); 2] =
                [(rig.client(), node_port), (rig.pod(0, 1)?, web.frontend(family))];
            for (from, to) in askers {
                let answer = ask(from, Ask::new(protocol, to).within(2_000))?;
                let _new: bool = servers.insert((from.name(), answer.server));
            }
        }
        ensure!(servers.len() == 4, "{family:?} {protocol:?}: only {servers:?} answer");
    }
    Ok(())
}

/// New interfaces without an address: one gets a route to a network, one such a route in a table of its own (as with a
/// VRF), and one a nexthop object that a route names. The agent must learn of each from an event, not from a list.
#[test]
fn card_that_gets_a_way_later_is_served_at_once() -> Result<()> {
    if Kind::MacVlan.is_skipped()? {
        return Ok(());
    }
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    rig.start_agents(&[])?;
    let (node, gateway) = (rig.node(0)?.netns(), Segment::First.gateway()?.v4);
    node.sysctl("net.ipv4.nexthop_compat_mode", "0")?;
    node.ip(&format!(
        "nexthop add id 7 via {gateway} dev eth0\nroute add 198.18.0.0/15 nhid 7
         link add card2 link eth0 type macvlan mode bridge\nlink set dev card2 up
         link add card3 link eth0 type macvlan mode bridge\nlink set dev card3 up
         link add card4 link eth0 type macvlan mode bridge\nlink set dev card4 up"
    ))?;
    let attached =
        |by| rig.agent(0)?.metric(&["lb_devices_attached_total", &format!("source=\"{by}\"")]);
    let lists = attached("list")?;
    for (device, line) in [
        ("card2", "route add 198.51.100.0/24 dev card2".to_owned()),
        ("card4", "route add 203.0.113.0/24 dev card4 table 10".to_owned()),
        ("card3", format!("nexthop replace id 7 via {gateway} dev card3 onlink")),
    ] {
        let events = attached("event")?;
        node.ip(&line)?;
        wait_until_ok(SOON, "the interface has the programs of an external one", || {
            let status = rig.agent(0)?.exit_said(&["status"])?;
            let mut words = status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let expected = ["Interface", device, "external", "attached"];
            ensure!(words.any(|words| words.starts_with(&expected)), "{status}");
            Ok(())
        })?;
        ensure!(attached("event")? > events, "{device} was not attached by an event");
    }
    ensure!((attached("list")? - lists).abs() < 0.5, "an interface was attached by a list");
    Ok(())
}

/// A cable to one machine: no network, no gateway.
#[test]
fn card_with_the_address_of_its_other_end_is_served() -> Result<()> {
    if Kind::MacVlan.is_skipped()? {
        return Ok(());
    }
    let rig = with_card(&["address add 172.31.0.1 peer 172.31.0.2 dev card1"])?;
    is_external(&rig, CARD)
}

/// While a card is down its routes are gone, and it may be neither the one of the Node's address nor that of a default
/// route. A network manager takes its address away for a moment, a routing daemon its routes. If it lost its programs,
/// the kernel would answer the first segments of open connections by a reset when all is back.
#[test]
fn card_that_is_down_or_without_network_keeps_its_programs() -> Result<()> {
    if Kind::MacVlan.is_skipped()? {
        return Ok(());
    }
    let rig = with_card(&["address add 172.31.0.1/24 dev card1"])?;
    is_external(&rig, CARD)?;
    let node = rig.node(0)?;
    let index = node.device_number(CARD, "ifindex")?;
    let links = || -> Result<[Vec<u32>; 2]> {
        let [one, other] = [Direction::Ingress, Direction::Egress]
            .map(|direction| node.links_at(index, direction));
        Ok([one?, other?])
    };
    let before = links()?;
    ensure!(before.iter().all(|links| links.len() == 1), "{before:?}");
    let changes = [
        "link set dev card1 down",
        "link set dev card1 up",
        "address delete 172.31.0.1/24 dev card1",
        "route add 172.32.0.0/16 dev card1",
        "route delete 172.32.0.0/16 dev card1",
        "address add 172.31.0.1/24 dev card1",
    ];
    for (number, change) in changes.into_iter().enumerate() {
        // Once a later interface is served, the agent has seen all changes.
        let later = format!("later{number}");
        node.netns().ip(&format!(
            "{change}
             link add {later} link eth0 type macvlan mode bridge
             address add 172.31.{}.1/24 dev {later}
             link set dev {later} up",
            number + 1
        ))?;
        is_external(&rig, &later)?;
        ensure!(links()? == before, "{change}: {:?} after {before:?}", links()?);
    }
    Ok(())
}

/// A node with a card that is up, after these commands.
fn with_card(lines: &[&str]) -> Result<Rig> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let node = rig.node(0)?.netns();
    node.ip(&format!("link add {CARD} link eth0 type macvlan mode bridge\n{}", lines.join("\n")))?;
    node.ip(&format!("link set dev {CARD} up"))?;
    rig.start_agents(&[])?;
    Ok(rig)
}

/// A second network of a pod: both ends of the veth have an address of it.
#[test]
fn second_veth_of_a_pod_is_a_pods() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(&[])?;
    let (node, pod) = (rig.node(0)?.netns(), rig.pod(0, 0)?.netns());
    node.ip(&format!(
        "link add second1 type veth peer name eth1 netns {}\n\
         address add 172.30.0.1/24 dev second1\n\
         link set dev second1 up",
        pod.name()
    ))?;
    pod.ip("address add 172.30.0.2/24 dev eth1\n\
         link set dev eth1 up\n\
         route add 10.96.0.0/16 via 172.30.0.1 dev eth1")?;
    wait_until_ok(SOON, "the second veth has the role pod, and its questions are answered", || {
        let status = rig.agent(0)?.exit_said(&["status"])?;
        let words = status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let expected = ["Interface", "second1", "pod", "attached"];
        ensure!(words.into_iter().any(|words| words.starts_with(&expected)), "{status}");
        ensure!(!status.contains("Ambiguous"), "{status}");
        drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(Family::V4)).within(500))?);
        Ok(())
    })
}

/// An operator who names the external interfaces must be told of one that is missing.
#[test]
fn card_without_programs_is_a_problem() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1).two_segments())?;
    rig.start_agents(&["--external-device=eth0"])?;
    let problem = "interface eth1: packets are routed through it, but it has no programs";
    wait_until_ok(SOON, "status names the interface", || {
        let status = rig.agent(0)?.exit_said(&["status"])?;
        let mut problems = status.lines().filter(|line| line.starts_with("Problem"));
        ensure!(problems.any(|line| line.contains(problem)), "{status}");
        rig.agent(0)?.has_problems(1)
    })
}
