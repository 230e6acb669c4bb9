//! Nodes with two uplinks, whose routes move between them and may have several next hops: flows go on by the route that
//! is valid.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, until, until_within};
use lb_tests::topology::{Addresses, Family, Member, Segment, Shape, Topology};
use lb_tests::traffic::{Answer, Ask, Failure, ping};
use lb_tests::wait::wait_until_ok;

const NODE_PORT: u16 = 30_080;
/// The deadline for another source: the sweep runs every five seconds.
const RENEWED: Duration = Duration::from_mins(1);
/// The deadline for one answer, and the number of answers that are tried.
const PATIENCE: Duration = Duration::from_secs(1);
const TRIES: usize = 60;

/// Leads each node's packets to the pods of the other one by a segment.
fn reach_pods(rig: &Rig, segment: Segment, device: &str) -> Result<()> {
    for (index, host) in [(0, 12), (1, 11)] {
        let ([pods4, pods6], to) = (rig.node(1 - index)?.pod_ranges(), segment.host(host)?);
        rig.node(index)?.netns().ip(&format!(
            "route replace {pods4} via {} dev {device}\nroute replace {pods6} via {} dev {device}",
            to.v4, to.v6
        ))?;
    }
    Ok(())
}

/// Waits until the backend of one flow of each family sees node A's address of a segment.
fn seen_from(rig: &Rig, segment: Segment) -> Result<()> {
    for family in Family::ALL {
        let node_port = rig.node(0)?.addresses().socket(family, NODE_PORT);
        let question = Ask::udp(node_port).from_port(40_123).unconnected();
        let ip = segment.host(11)?.of(family);
        let is_seen = |answer: &Result<Answer, Failure>| {
            answer.as_ref().is_ok_and(|answer| answer.client.ip() == ip)
        };
        until_within(RENEWED, rig.client(), question, is_seen)?;
    }
    Ok(())
}

/// The card that leads to the backend goes down, and the route moves to the other card. Netfilter forgets masqueraded
/// connections of a card that goes down, so their next packets get another source there as well.
#[test]
fn datagrams_go_on_by_another_card_with_its_source() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).rp_filter(2).two_segments())?;
    reach_pods(&rig, Segment::Second, "eth1")?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    rig.manifests().apply(&web.pods(&[rig.pod(1, 0)?]))?;
    rig.start_agents(&[])?;
    seen_from(&rig, Segment::Second)?;
    rig.node(0)?.netns().ip("link set dev eth1 down")?;
    reach_pods(&rig, Segment::First, "eth0")?;
    seen_from(&rig, Segment::First)
}

/// The cable is pulled, so the interface stays up, and the route moves as a routing daemon would move it.
#[test]
fn flows_leave_a_card_that_has_lost_its_carrier() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).rp_filter(2).two_segments())?;
    reach_pods(&rig, Segment::Second, "eth1")?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    rig.manifests().apply(&web.pods(&[rig.pod(1, 0)?]))?;
    rig.start_agents(&[])?;
    seen_from(&rig, Segment::Second)?;
    rig.topology().fabric().ip("link set dev eth1-node-a down")?;
    wait_until_ok(RENEWED, "the card has no carrier, and is up", || {
        let link = rig.node(0)?.netns().tool("ip", &["link", "show", "dev", "eth1"])?;
        ensure!(link.contains("NO-CARRIER") && link.contains(",UP"), "{link}");
        Ok(())
    })?;
    reach_pods(&rig, Segment::First, "eth0")?;
    seen_from(&rig, Segment::First)
}

/// The route is looked up for each packet. With several next hops it depends on source and port, and the reply comes
/// back by the interface whose address is the source.
#[test]
fn packets_of_a_process_stay_at_one_of_several_next_hops() -> Result<()> {
    /// The number of sockets: each hop gets some of them.
    const SOCKETS: u16 = 48;
    let mut rig = Rig::build(Topology::builder(Shape::Routed).rp_filter(2).two_segments())?;
    let [one, two] = [Segment::First.host(12)?, Segment::Second.host(12)?];
    let [pods4, pods6] = rig.node(1)?.pod_ranges();
    let node = rig.node(0)?.netns();
    node.sysctl("net.ipv4.fib_multipath_hash_policy", "1")?;
    node.sysctl("net.ipv6.fib_multipath_hash_policy", "1")?;
    node.ip(&format!(
        "nexthop add id 1 via {} dev eth0
         nexthop add id 2 via {} dev eth1
         nexthop add id 3 group 1/2
         route replace {pods4} nhid 3
         nexthop add id 4 via {} dev eth0
         nexthop add id 5 via {} dev eth1
         nexthop add id 6 group 4/5
         route replace {pods6} nhid 6",
        one.v4, two.v4, one.v6, two.v6
    ))?;
    let [first, second] = [Segment::First.host(11)?, Segment::Second.host(11)?];
    // A router that checks sources: each network takes only packets of its own.
    let strict = format!(
        "table inet strict {{ chain prerouting {{ type filter hook prerouting priority raw;
           iifname eth0 ip saddr {} drop
           iifname eth0 ip6 saddr {} drop
           iifname eth1 ip saddr {} drop
           iifname eth1 ip6 saddr {} drop
         }}
         }}",
        second.v4, second.v6, first.v4, first.v6
    );
    drop(rig.node(1)?.netns().tool_fed("nft", &["-f", "-"], &strict)?);
    // The next hop is named to the kernel where its link-layer address is known.
    for hop in [one, two].iter().flat_map(Addresses::both) {
        ping(rig.node(0)?, hop, 8)?;
    }
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    rig.manifests().apply(&web)?;
    // On the backend's node packets must take the stack, where the rules are.
    let configuration = rig.configuration("bypass: 'off'")?;
    rig.start_agents(&[&configuration])?;
    for family in Family::ALL {
        let mut sources = BTreeSet::new();
        for port in 0..SOCKETS {
            let question = Ask::udp(web.frontend(family)).from_port(41_000 + port).unconnected();
            let kept = rig.node(0)?.peer().keep(question)?;
            for _ in 0..3 {
                let answer = kept.ask().with_context(|| format!("{question:?}"))?;
                sources.insert(answer.client.ip());
            }
        }
        ensure!(sources.len() == 2, "only {sources:?}: one next hop had all flows");
    }
    Ok(())
}

/// A process waits for what its server sends, and sends nothing itself, while its route moves from a card that goes
/// down.
#[test]
fn answers_reach_a_process_whose_card_has_gone_down() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).rp_filter(2).two_segments())?;
    // Only this node: the other one would not answer its ARP requests in the name of the other card.
    for device in ["all", "eth0", "eth1", "veth-a1"] {
        rig.node(0)?.netns().sysctl(&format!("net.ipv4.conf.{device}.rp_filter"), "1")?;
    }
    let pod = rig.pod(0, 0)?;
    let web = Service::new("web", 10)?.port(80, 9_000).pods(&[pod]);
    rig.manifests().apply(&web)?;
    let leads = |rig: &Rig, segment: Segment, device: &str| -> Result<()> {
        let to = segment.host(12)?;
        rig.node(0)?.netns().ip(&format!(
            "route replace default via {} dev {device}\nroute replace default via {} dev {device}",
            to.v4, to.v6
        ))
    };
    leads(&rig, Segment::Second, "eth1")?;
    rig.start_agents(&[])?;
    let bind = |member: &Member, at: SocketAddr| -> Result<UdpSocket> {
        let socket = member.netns().run_in(|| UdpSocket::bind(at))??;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(socket)
    };
    let mut pairs = Vec::new();
    for family in Family::ALL {
        let server = bind(rig.pod(0, 0)?, SocketAddr::new(rig.pod(0, 0)?.ip(family), 9_000))?;
        let from = SocketAddr::new(Segment::First.host(11)?.of(family), 40_322);
        let client = bind(rig.node(0)?, from)?;
        let asked_from = (0..TRIES).find_map(|_| {
            drop(client.send_to(b"question", web.frontend(family)));
            server.recv_from(&mut [0; 64]).ok().map(|(_, from)| from)
        });
        let asked_from = asked_from.with_context(|| format!("{family:?}: no question arrived"))?;
        server.send_to(b"answer", asked_from)?;
        client.recv_from(&mut [0; 64]).with_context(|| format!("{family:?}: no first answer"))?;
        pairs.push((server, client, asked_from));
    }
    rig.node(0)?.netns().ip("link set dev eth1 down")?;
    leads(&rig, Segment::First, "eth0")?;
    for (server, client, asked_from) in pairs {
        // The agent hears of the interface after the kernel.
        let tried = (0..TRIES).find(|_| {
            server.send_to(b"more", asked_from).is_ok() && client.recv_from(&mut [0; 64]).is_ok()
        });
        ensure!(tried.is_some(), "{asked_from}: {TRIES} answers, and none arrived");
    }
    Ok(())
}

/// A process of the node goes on asking from one socket while its default route moves from a card that goes down to
/// another one.
#[test]
fn answers_to_the_node_follow_its_default_route() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).rp_filter(2).two_segments())?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 0)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(&[])?;
    for (segment, device, before) in
        [(Segment::Second, "eth1", ""), (Segment::First, "eth0", "link set dev eth1 down")]
    {
        let to = segment.host(12)?;
        rig.node(0)?.netns().ip(&format!(
            "{before}\nroute replace default via {} dev {device}\nroute replace default via {} dev {device}",
            to.v4, to.v6
        ))?;
        for family in Family::ALL {
            // The address of the card that stays: the other's IPv6 address goes with it.
            let from = SocketAddr::new(Segment::First.host(11)?.of(family), 40_321);
            let question = Ask::udp(web.frontend(family)).from(from).unconnected();
            until(rig.node(0)?, question, Result::is_ok)?;
        }
    }
    Ok(())
}
