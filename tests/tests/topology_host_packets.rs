//! Processes of a node that no socket hook serves, outside of `--cgroup` or with `socketLB: off`: their packets
//! are translated where they leave (ADR 0018).

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{
    Rig, TARGET, answered_by, ask, different_servers, dropped, matrix, refused, servers,
};
use lb_tests::topology::{Addresses, Family, Shape, Topology};
use lb_tests::traffic::{Ask, Failure, Handmade, Protocol, pieces};
use lb_tests::wait::wait_until;

/// How long the agent may take.
const SOON: Duration = Duration::from_secs(30);

in_both_shapes!(
    every_kind_of_backend_answers_through_a_closed_firewall,
    backend_sees_the_node_where_kube_proxy_shows_it,
    every_backend_gets_its_share_and_affinity_holds,
    service_without_endpoints_is_refused_and_a_forbidden_one_is_silent,
    datagrams_move_on_when_their_endpoint_leaves,
    process_outside_the_cgroup_is_answered,
    large_datagrams_arrive_in_one_piece,
    node_port_is_served_by_other_nodes_and_never_by_its_own,
);

/// A rig whose agents attach to no socket, beside the firewall of a CNI.
fn without_hooks(shape: Shape, more: &str) -> Result<Rig> {
    let mut rig = Rig::build(Topology::builder(shape).firewall())?;
    let config = rig.configuration(&format!("socketLB: 'off'\n{more}"))?;
    rig.start_agents(&[&config])?;
    Ok(rig)
}

/// A pod and a host, here and there.
fn every_kind_of_backend_answers_through_a_closed_firewall(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let node = rig.node(0)?;
    for (name, endpoint) in [
        ("pod-a2", Endpoint::pod(rig.pod(0, 1)?)),
        ("pod-b2", Endpoint::pod(rig.pod(1, 1)?)),
        ("node-a", Endpoint::host(node)),
        ("node-b", Endpoint::host(rig.node(1)?)),
    ] {
        let vip = "198.51.100.7".parse()?;
        let vip6 = "fd00:198::7".parse()?;
        let web = Service::new("web", 10)?.port(80, TARGET).external_ips(&[vip, vip6]);
        let web = web.endpoints([endpoint]);
        for (family, protocol) in matrix() {
            let external = SocketAddr::new(if family == Family::V4 { vip } else { vip6 }, 80);
            for to in [web.frontend(family), external] {
                let question = Ask::new(protocol, to);
                rig.change(&web, (node, question), answered_by(name))?;
                let kept = node.peer().keep(question)?;
                for _ in 0..3 {
                    let answer = kept.ask()?;
                    ensure!(answer.server == name && answer.peer == to, "{answer:?}");
                }
                if protocol == Protocol::Udp {
                    let answer = ask(node, question.unconnected())?;
                    ensure!(answer.server == name && answer.peer == to, "{answer:?}");
                }
            }
        }
    }
    Ok(())
}

/// By default a backend beside it sees the address that stands for the host; elsewhere, and as with kube-proxy, the node.
fn backend_sees_the_node_where_kube_proxy_shows_it(shape: Shape) -> Result<()> {
    for (more, is_shown) in [("", false), ("masquerade: kube-proxy", true)] {
        let rig = without_hooks(shape, more)?;
        let node = rig.node(0)?;
        let turned = Addresses::parse("192.0.0.12", "100::c")?;
        for (pod, is_shown) in [(rig.pod(0, 1)?, is_shown), (rig.pod(1, 1)?, true)] {
            let web = Service::new("web", 10)?.port(80, TARGET).pods(&[pod]);
            for (family, protocol) in matrix() {
                let question = Ask::new(protocol, web.frontend(family));
                rig.change(&web, (node, question), answered_by(pod.name()))?;
                let saw = ask(node, question)?.client.ip();
                let is_hidden = saw == turned.of(family);
                ensure!(is_hidden != is_shown, "{} saw {saw}", pod.name());
            }
        }
    }
    Ok(())
}

fn every_backend_gets_its_share_and_affinity_holds(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let node = rig.node(0)?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&rig.pods());
    let sticky = Service::new("sticky", 11)?.port(80, TARGET).pods(&rig.pods()).affinity(600);
    rig.manifests().apply(&web)?;
    rig.change(&sticky, (node, Ask::tcp(sticky.frontend(Family::V6))), Result::is_ok)?;
    rig.until_programmed()?;
    for (family, protocol) in matrix() {
        let found = different_servers(node, Ask::new(protocol, web.frontend(family)), 4)?;
        ensure!(found.len() == 4, "{family} {protocol}: only {found:?}");
        let found = servers(node, Ask::new(protocol, sticky.frontend(family)), 20)?;
        ensure!(found.len() == 1, "{family} {protocol}: {found:?}");
    }
    Ok(())
}

fn service_without_endpoints_is_refused_and_a_forbidden_one_is_silent(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let node = rig.node(0)?;
    let empty = Service::new("empty", 10)?.port(80, TARGET);
    let elsewhere = Service::new("elsewhere", 11)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    let elsewhere = elsewhere.internal_policy_local();
    rig.manifests().apply(&elsewhere)?;
    rig.change(&empty, (node, Ask::tcp(empty.frontend(Family::V6))), |outcome| {
        *outcome == Err(Failure::Refused)
    })?;
    rig.until_programmed()?;
    for (family, protocol) in matrix() {
        refused(node, Ask::new(protocol, empty.frontend(family)))?;
        dropped(node, Ask::new(protocol, elsewhere.frontend(family)))?;
    }
    Ok(())
}

fn datagrams_move_on_when_their_endpoint_leaves(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let node = rig.node(0)?;
    let web = Service::new("web", 10)?.port(80, TARGET);
    let (before, after) =
        (web.clone().pods(&[rig.pod(0, 1)?]), web.clone().pods(&[rig.pod(1, 1)?]));
    for family in Family::ALL {
        for question in
            [Ask::udp(web.frontend(family)), Ask::udp(web.frontend(family)).unconnected()]
        {
            rig.change(&before, (node, question), answered_by("pod-a2"))?;
            let (kept, open) =
                (node.peer().keep(question)?, node.peer().keep(Ask::tcp(question.to))?);
            ensure!(kept.ask()?.server == "pod-a2" && open.ask()?.server == "pod-a2");
            rig.change(&after, (node, question), answered_by("pod-b2"))?;
            // What was left is over right after the switch: somebody may ask between the two.
            wait_until(SOON, "datagrams move on", || {
                answered_by("pod-b2")(&kept.ask()).then_some(())
            })?;
            let stayed = open.ask()?.server;
            ensure!(stayed == "pod-a2", "a connection went over to {stayed}");
        }
    }
    Ok(())
}

/// The hooks are attached, but this very process is in another cgroup than the node.
fn process_outside_the_cgroup_is_answered(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&rig.pods());
    let rig = rig.start(&[&web])?;
    for family in Family::ALL {
        let to = web.frontend(family);
        let asked = rig.node(0)?.netns().run_in(|| -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(15))?;
            stream.set_read_timeout(Some(Duration::from_secs(15)))?;
            stream.write_all(b"ask 0 \n")?;
            stream.shutdown(Shutdown::Write)?;
            let mut said = String::new();
            let _: usize = stream.read_to_string(&mut said)?;
            Ok(said)
        })?;
        let said = asked.with_context(|| format!("{to}"))?;
        ensure!(said.contains("pod-"), "{to} said {said:?}");
    }
    Ok(())
}

/// Fragments follow their first one round, too.
fn large_datagrams_arrive_in_one_piece(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let near = Service::new("near", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&near, &far])?;
    let node = rig.node(0)?;
    for family in Family::ALL {
        for (service, port) in [&near, &far].into_iter().zip([26_100, 26_101]) {
            let to = service.frontend(family);
            let hand = Handmade::open(node, node.addresses().socket(family, port))?;
            for (size, id) in [(100, 1), (3_000, 2), (20_000, 3)] {
                let parts = pieces(&hand.question(to, size), 1_400, id);
                parts.iter().try_for_each(|part| hand.send(part, to))?;
                hand.answer(to, size).with_context(|| format!("{size} bytes to {to}"))?;
            }
        }
    }
    Ok(())
}

/// What goes to an address of the node itself stays on `lo`, where no answer with such a source would be taken (ADR 0018).
fn node_port_is_served_by_other_nodes_and_never_by_its_own(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let node = rig.node(0)?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080);
    let web = web.pods(&[rig.pod(0, 1)?]);
    for (family, protocol) in matrix() {
        let [own, others] = [node, rig.node(1)?]
            .map(|node| Ask::new(protocol, node.addresses().socket(family, 30_080)));
        rig.change(&web, (node, others), answered_by("pod-a2"))?;
        // The stack's answer: nobody listens there.
        refused(node, own)?;
        drop(ask(node, Ask::new(protocol, web.frontend(family)))?);
    }
    Ok(())
}
