//! An interface with addresses of several networks: a masqueraded packet leaves with the address that its route names,
//! as with netfilter's MASQUERADE, which kube-proxy's rules use.

use anyhow::{Context as _, Result, ensure};
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, ask, matrix, until};
use lb_tests::topology::{Addresses, Family, Shape, Topology};
use lb_tests::traffic::{Answer, Ask, Failure, Protocol};

/// `NodePort`s of backends in the first network, in the second network, behind a router in the second network, and of a
/// pod behind that router.
const NODE_PORTS: [u16; 4] = [30_080, 30_081, 30_082, 30_083];
/// The difference between a `NodePort` and the port of netfilter's rules for the same backend.
const NETFILTERS: u16 = 1_000;

/// An address of the second network; number 11 is that of node-a.
fn second(number: u8) -> Result<Addresses> {
    Addresses::parse(&format!("192.168.70.{number}"), &format!("fd00:70::{number}"))
}

/// Builds nodes with a second network on the same interface; behind node-b are another network and its pods.
fn build() -> Result<(Rig, [Addresses; 4])> {
    let rig = Rig::build(Topology::builder(Shape::Bridged))?;
    let [pods4, pods6] = rig.node(1)?.pod_ranges();
    rig.node(0)?.netns().ip(&format!(
        "address add 192.168.70.11/24 dev eth0
         address add fd00:70::11/64 dev eth0 nodad
         route add 192.168.71.0/24 via 192.168.70.12
         route add fd00:70:0:1::/64 via fd00:70::12
         route replace {pods4} via 192.168.70.12
         route replace {pods6} via fd00:70::12"
    ))?;
    rig.node(1)?.netns().ip("address add 192.168.70.12/24 dev eth0
         address add fd00:70::12/64 dev eth0 nodad
         address add 192.168.71.12/32 dev lo
         address add fd00:70:0:1::12/128 dev lo nodad")?;
    let (near, far) = (second(12)?, Addresses::parse("192.168.71.12", "fd00:70:0:1::12")?);
    for (protocol, at) in Protocol::ALL.into_iter().flat_map(|it| [(it, near), (it, far)]) {
        rig.node(1)?.peer().serve(protocol, &at.both(), TARGET)?;
    }
    let backends = [rig.node(1)?.addresses(), near, far, rig.pod(1, 0)?.addresses()];
    for ((backend, port), index) in backends.into_iter().zip(NODE_PORTS).zip(10..) {
        let service = Service::new(&format!("web-{index}"), index)?.port(80, TARGET);
        let endpoint = Endpoint::at(backend, rig.node(1)?.name());
        rig.manifests().apply(&service.node_port(port).endpoints([endpoint]))?;
    }
    Ok((rig, backends))
}

/// Adds netfilter rules for the same backends, as kube-proxy would write them, on other ports.
fn add_rules(rig: &Rig, backends: [Addresses; 4]) -> Result<()> {
    let rule = |(Addresses { v4, v6 }, port)| {
        let port = port + NETFILTERS;
        ["tcp", "udp"].map(|protocol| {
            format!(
                "meta nfproto ipv4 {protocol} dport {port} dnat ip to {v4}:{TARGET}
                 meta nfproto ipv6 {protocol} dport {port} dnat ip6 to [{v6}]:{TARGET}\n"
            )
        })
    };
    let rules: String = backends.into_iter().zip(NODE_PORTS).flat_map(rule).collect();
    let table = format!(
        "table inet services {{
           chain prerouting {{ type nat hook prerouting priority dstnat; {rules} }}
           chain postrouting {{ type nat hook postrouting priority srcnat; ct status dnat masquerade; }}
         }}"
    );
    rig.node(0)?.netns().tool_fed("nft", &["-f", "-"], &table).map(drop)
}

fn question(rig: &Rig, family: Family, protocol: Protocol, port: u16) -> Result<Ask> {
    Ok(Ask::new(protocol, rig.node(0)?.addresses().socket(family, port)))
}

/// Checks that backends see this source address, in the first question of a flow and in later ones.
fn is_asked_from(rig: &Rig, port: u16, source: Addresses) -> Result<()> {
    for (family, protocol) in matrix() {
        let question = question(rig, family, protocol, port)?;
        let kept = rig.client().peer().keep(question)?;
        for _ in 0..3 {
            let answer = kept.ask().with_context(|| format!("{question:?}"))?;
            ensure!(answer.client.ip() == source.of(family), "{question:?}: {answer:?}");
        }
    }
    Ok(())
}

/// Waits until new flows have this source address, and checks it.
fn comes_to_be_asked_from(rig: &Rig, port: u16, source: Addresses) -> Result<()> {
    for (family, protocol) in matrix() {
        let saw = |outcome: &Result<Answer, Failure>| {
            outcome.as_ref().is_ok_and(|answer| answer.client.ip() == source.of(family))
        };
        until(rig.client(), question(rig, family, protocol, port)?, saw)?;
    }
    is_asked_from(rig, port, source)
}

fn backends_see_the_network_that_leads_to_them(masquerade: &str) -> Result<()> {
    let (mut rig, backends) = build()?;
    let configuration = rig.configuration(&format!("masquerade: {masquerade}"))?;
    rig.start_agents(&[&configuration])?;
    let (first, own) = (rig.node(0)?.addresses(), second(11)?);
    for (port, source) in NODE_PORTS.into_iter().zip([first, own, own]) {
        is_asked_from(&rig, port, source)?;
    }
    add_rules(&rig, backends)?;
    for ((family, protocol), port) in matrix().flat_map(|of| NODE_PORTS.map(|port| (of, port))) {
        let saw = |port| {
            let question = question(&rig, family, protocol, port)?;
            Ok::<_, anyhow::Error>(ask(rig.client(), question)?.client)
        };
        let (ours, netfilters) = (saw(port)?, saw(port + NETFILTERS)?);
        ensure!(ours.ip() == netfilters.ip(), "{port}: {ours}, and {netfilters} of netfilter");
    }
    let kept = rig.agent(0)?.metric(&["lb_events_total", "\"source_kept\""])?;
    ensure!(kept < 0.5, "{kept} flows kept the first address");
    let status = rig.agent(0)?.command(&["status"])?;
    let line = status.lines().find(|line| line.contains(" eth0 ")).context("no eth0")?;
    ensure!(line.ends_with("(or by route, several networks)"), "{line}");

    // First another address of that network, and then none.
    let (netns, near) = (rig.node(0)?.netns(), NODE_PORTS[1]);
    netns.ip("address del 192.168.70.11/24 dev eth0
         address del fd00:70::11/64 dev eth0
         address add 192.168.70.13/24 dev eth0
         address add fd00:70::13/64 dev eth0 nodad")?;
    comes_to_be_asked_from(&rig, near, second(13)?)?;
    netns.ip("address del 192.168.70.13/24 dev eth0
         address del fd00:70::13/64 dev eth0
         route add 192.168.70.0/24 dev eth0
         route add fd00:70::/64 dev eth0")?;
    comes_to_be_asked_from(&rig, near, first)
}

#[test]
fn backends_see_the_network_that_leads_to_them_with_masquerade_edge() -> Result<()> {
    backends_see_the_network_that_leads_to_them("edge")
}

#[test]
fn backends_see_the_network_that_leads_to_them_with_masquerade_kube_proxy() -> Result<()> {
    backends_see_the_network_that_leads_to_them("kube-proxy")
}

/// The bridge of the pods has another network as well, which comes first: with `masquerade: kube-proxy`, pods are
/// masqueraded towards it, too.
#[test]
fn pods_see_their_network_on_a_bridge_that_has_two() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Bridged))?;
    rig.node(0)?.netns().ip("address del 10.244.1.1/24 dev cni0
         address add 10.254.1.1/24 dev cni0
         address add 10.244.1.1/24 dev cni0
         address add fd00:254:1::1/64 dev cni0 nodad")?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORTS[0]);
    rig.manifests().apply(&web.pods(&[rig.pod(0, 1)?]))?;
    let configuration = rig.configuration("masquerade: kube-proxy")?;
    rig.start_agents(&[&configuration])?;
    let own = Addresses::parse("10.244.1.1", "fd00:244:1::1")?;
    for (family, protocol) in matrix() {
        let question = question(&rig, family, protocol, NODE_PORTS[0])?;
        for from in [&**rig.pod(0, 0)?, rig.client()] {
            let answer = ask(from, question)?;
            ensure!(answer.client.ip() == own.of(family), "{question:?}: {answer:?}");
        }
    }
    let status = rig.agent(0)?.command(&["status"])?;
    let line = status.lines().find(|line| line.contains(" veth-a1 ")).context("no veth-a1")?;
    ensure!(line.contains(" 10.254.1.1 "), "not the first: {line}");
    Ok(())
}

/// The map of addresses whose answers are known is pinned, as are flows: a restarted agent loses neither.
#[test]
fn flows_from_the_second_network_outlive_the_agent() -> Result<()> {
    let (mut rig, _) = build()?;
    rig.start_agents(&[])?;
    let mut agent = rig.take_agent(0)?;
    let kept: Vec<_> = matrix()
        .map(|(family, protocol)| {
            let question = question(&rig, family, protocol, NODE_PORTS[1])?;
            Ok((family, rig.client().peer().keep(question)?))
        })
        .collect::<Result<_>>()?;
    let go_on = || {
        kept.iter().try_for_each(|(family, kept)| {
            let answer = kept.ask()?;
            ensure!(answer.client.ip() == second(11)?.of(*family), "{answer:?}");
            Ok(())
        })
    };
    go_on()?;
    agent.kill9()?;
    go_on()?;
    is_asked_from(&rig, NODE_PORTS[2], second(11)?)?;
    agent.start_again()?;
    go_on()?;
    is_asked_from(&rig, NODE_PORTS[2], second(11)?)
}

/// Policy routing by source and by mark: our programs must find the same route as the stack.
#[test]
fn rules_by_source_and_by_mark_lead_to_the_same_source() -> Result<()> {
    let (mut rig, _) = build()?;
    rig.start_agents(&[])?;
    let netns = rig.node(0)?.netns();
    let mark = "table inet marks {
          chain prerouting { type filter hook prerouting priority mangle; meta mark set 7; }
        }";
    drop(netns.tool_fed("nft", &["-f", "-"], mark)?);
    netns.ip("route replace 192.168.71.0/24 via 192.168.50.12
         route add 192.168.71.0/24 via 192.168.70.12 table 100")?;
    let (first, own) = (rig.node(0)?.addresses(), second(11)?);
    let is_asked_from = |source: Addresses| {
        Protocol::ALL.into_iter().try_for_each(|protocol| {
            let question = question(&rig, Family::V4, protocol, NODE_PORTS[2])?;
            let answer = ask(rig.client(), question)?;
            ensure!(answer.client.ip() == source.of(Family::V4), "{question:?}: {answer:?}");
            Ok(())
        })
    };
    is_asked_from(first)?;
    for rule in ["from 192.168.50.100", "fwmark 7"] {
        netns.ip(&format!("rule add {rule} lookup 100"))?;
        is_asked_from(own).with_context(|| rule.to_owned())?;
        netns.ip(&format!("rule del {rule} lookup 100"))?;
        is_asked_from(first).with_context(|| format!("without {rule}"))?;
    }
    Ok(())
}
