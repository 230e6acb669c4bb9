//! Each documented setting answers what the default answers: one list of questions from every place to every kind of
//! frontend, and what changes may do to sockets that stay.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{Rig, TARGET, answered_by, ask, dropped, matrix, refused, servers, until};
use lb_tests::topology::{Addresses, Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Failure, Protocol};
use lb_tests::wait::wait_until_ok;

const NODE_PORT: u16 = 30_080;
/// How long a socket that stays may take to see a change.
const SOON: Duration = Duration::from_secs(30);
/// Bytes of a datagram in pieces.
const LARGE: usize = 20_001;

in_both_shapes!(
    sockets_of_all_are_served,
    sockets_of_nobody_are_served,
    known_flows_bypass_the_stack,
    xdp_accelerates,
    masquerade_is_that_of_kube_proxy,
    pods_sockets_are_served_beside_the_masquerade_of_kube_proxy,
    packets_of_the_host_are_translated_beside_xdp,
);

fn sockets_of_all_are_served(shape: Shape) -> Result<()> {
    holds(shape, "socketLB: all")
}

fn sockets_of_nobody_are_served(shape: Shape) -> Result<()> {
    holds(shape, "socketLB: 'off'")
}

fn known_flows_bypass_the_stack(shape: Shape) -> Result<()> {
    holds(shape, "shortCuts: 'on'")
}

fn xdp_accelerates(shape: Shape) -> Result<()> {
    holds(shape, "acceleration: native")
}

fn masquerade_is_that_of_kube_proxy(shape: Shape) -> Result<()> {
    holds(shape, "masquerade: kube-proxy")
}

fn pods_sockets_are_served_beside_the_masquerade_of_kube_proxy(shape: Shape) -> Result<()> {
    holds(shape, "socketLB: all\nmasquerade: kube-proxy")
}

fn packets_of_the_host_are_translated_beside_xdp(shape: Shape) -> Result<()> {
    holds(shape, "socketLB: 'off'\nacceleration: native")
}

/// Everything, with one setting.
fn holds(shape: Shape, setting: &str) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let external = Addresses::parse("198.51.100.7", "fd00:198::7")?;
    let pods = [rig.pod(0, 1)?, rig.pod(1, 1)?];
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.external_ips(&external.both());
    let endpoints = pods.map(Endpoint::pod).into_iter().chain([Endpoint::host(rig.node(1)?)]);
    let web = web.endpoints(endpoints);
    let empty = Service::new("empty", 11)?.port(80, TARGET);
    let vip = Addresses::parse("198.51.100.8", "fd00:198::8")?;
    let closed = Service::new("closed", 12)?.port(80, TARGET).pods(&pods);
    let closed = closed.load_balancer(&vip.both(), &["203.0.113.0/24", "2001:db8::/32"]);
    let node = rig.node(0)?.addresses();
    for to in [&external, &vip] {
        rig.client().netns().ip(&format!(
            "route add {}/32 via {}\nroute add {}/128 via {}",
            to.v4, node.v4, to.v6, node.v6
        ))?;
    }
    for service in [&web, &empty, &closed] {
        rig.manifests().apply(service)?;
    }
    let config = rig.configuration(setting)?;
    rig.start_agents(&[&config])?;
    for (family, protocol) in matrix() {
        everybody_is_answered(&rig, &web, &external, (family, protocol))?;
        for from in [&**rig.pod(0, 0)?, &**rig.node(0)?] {
            refused(from, Ask::new(protocol, empty.frontend(family)))?;
        }
        let to = SocketAddr::new(vip.of(family), 80);
        dropped(rig.client(), Ask::new(protocol, to))?;
        hairpin(&rig, (family, protocol))?;
    }
    sockets_that_stay_see_changes(&rig)
}

/// Pods, hosts and the client outside ask every frontend that they may ask; large datagrams, too.
fn everybody_is_answered(
    rig: &Rig,
    web: &Service,
    external: &Addresses,
    (family, protocol): (Family, Protocol),
) -> Result<()> {
    let node_port = |node: usize| -> Result<SocketAddr> {
        Ok(rig.node(node)?.addresses().socket(family, NODE_PORT))
    };
    let outside = [node_port(0)?, node_port(1)?, SocketAddr::new(external.of(family), 80)];
    let inside = [web.frontend(family)];
    let (pod, host, client) = (&**rig.pod(0, 0)?, &**rig.node(0)?, rig.client());
    let mut asked: Vec<(&Member, SocketAddr)> = Vec::new();
    asked.extend([pod, host].into_iter().flat_map(|from| inside.map(|to| (from, to))));
    asked.extend([pod, host, client].into_iter().flat_map(|from| outside.map(|to| (from, to))));
    for (from, to) in asked {
        let question = Ask::new(protocol, to);
        drop(servers(from, question, 6).with_context(|| format!("{} asks {to}", from.name()))?);
        let answer = ask(from, question)?;
        ensure!(answer.peer == to, "{}: {answer:?}", from.name());
        // The first packet of a host to its own address is answered with the size of the way to the backend: `lo` has none.
        let is_told_size = from.name() == host.name() && to == node_port(0)?;
        if protocol == Protocol::Udp && !is_told_size {
            let sized = question.sized(LARGE, LARGE);
            drop(ask(from, sized).with_context(|| format!("{LARGE} bytes to {to}"))?);
        }
    }
    Ok(())
}

/// A pod that is the only backend asks its own Service.
fn hairpin(rig: &Rig, (family, protocol): (Family, Protocol)) -> Result<()> {
    let pod = rig.pod(0, 0)?;
    let own = Service::new("own", 13)?.port(80, TARGET).pods(&[pod]);
    rig.change(&own, (pod, Ask::new(protocol, own.frontend(family))), answered_by("pod-a1"))
}

/// Sockets of a pod and of a host: connections stay, datagrams move with the endpoints, also where a socket was connected
/// before there was one, and where the target port changes.
fn sockets_that_stay_see_changes(rig: &Rig) -> Result<()> {
    let [near, far] = [rig.pod(0, 1)?, rig.pod(1, 1)?];
    let late = Service::new("late", 14)?.port(80, TARGET);
    for (family, from) in Family::ALL.into_iter().flat_map(|family| {
        [(family, rig.pod(0, 0).map(|pod| &**pod)), (family, rig.node(0).map(|node| &**node))]
    }) {
        let (from, to) = (from?, late.frontend(family));
        rig.change(&late, (from, Ask::tcp(to)), |outcome| *outcome == Err(Failure::Refused))?;
        let datagrams = from.peer().keep(Ask::udp(to).within(300))?;
        let moved_to = |name: &str| {
            wait_until_ok(SOON, "datagrams follow their endpoints", || {
                let outcome = datagrams.ask();
                ensure!(answered_by(name)(&outcome), "{}: {outcome:?}, not {name}", from.name());
                Ok(())
            })
        };
        rig.manifests().apply(&late.clone().pods(&[near]))?;
        moved_to("pod-a2")?;
        until(from, Ask::tcp(to), answered_by("pod-a2"))?;
        let open = from.peer().keep(Ask::tcp(to))?;
        ensure!(open.ask()?.server == "pod-a2");
        rig.manifests().apply(&late.clone().pods(&[far]))?;
        moved_to("pod-b2")?;
        let stayed = open.ask()?.server;
        ensure!(stayed == "pod-a2", "{}: a connection went over to {stayed}", from.name());
    }
    Ok(())
}
