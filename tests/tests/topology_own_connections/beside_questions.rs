//! Connections of the node, or of masqueraded pods, from the ports of frontends that a client outside asks all the
//! time: the answers to the node stay apart from the questions to the Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::rig::{Rig, TARGET, matrix, refused};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::frame::UDP;
use lb_tests::traffic::{Ask, Capture, Load, PAUSE, Protocol};

use super::frontends::xdp_has_served;
use super::later::{Opener, open};
use super::{EXTERNAL, TAKEN, masquerade, rig, rig_of};

in_both_shapes!(
    connections_of_the_node_beside_questions_to_their_ports,
    connections_of_masqueraded_pods_beside_questions_to_their_ports,
);

fn connections_of_the_node_beside_questions_to_their_ports(shape: Shape) -> Result<()> {
    beside_questions(&rig(shape)?, Opener::Node)
}

fn connections_of_masqueraded_pods_beside_questions_to_their_ports(shape: Shape) -> Result<()> {
    beside_questions(&rig(shape)?, Opener::Pod)
}

#[test]
fn connections_beside_questions_to_their_ports_that_xdp_serves() -> Result<()> {
    for opener in [Opener::Node, Opener::Pod] {
        let builder = Topology::builder(Shape::Routed).without_checksum_offload().polling();
        let rig = rig_of(builder, "native")?;
        beside_questions(&rig, opener)?;
        xdp_has_served(&rig)?;
    }
    Ok(())
}

fn beside_questions(rig: &Rig, opener: Opener) -> Result<()> {
    let capture = Capture::start(rig.client().netns(), "eth0")?;
    let [.., none] = TAKEN;
    // Netfilter follows connections from its first rule on. One that is open by then looks to it like a connection of
    // its backend to the client, and would be masqueraded.
    masquerade(rig, rig.client(), &none.to_string())?;
    let loads = ask_all(rig)?;
    let mut flows = Vec::new();
    for port in TAKEN.into_iter().chain([EXTERNAL]) {
        for (family, protocol) in matrix() {
            flows.push((port, open(rig, opener, family, protocol, port)?));
        }
    }
    for _ in 0..campaign::size(20, 300) {
        for (port, flow) in &flows {
            let answer = flow.ask()?;
            ensure!(answer.server == rig.client().name(), "{answer:?}");
            ensure!(answer.client.port() == *port, "not from {port}: {answer:?}");
        }
        // TCP over IPv4 is refused by an ICMP error. After one in some thousands, poll(2) reports POLLHUP and
        // SO_ERROR is 0; why is not known.
        for (family, protocol) in matrix().filter(|it| *it != (Family::V4, Protocol::Tcp)) {
            let empty = rig.node(0)?.addresses().socket(family, none);
            refused(rig.client(), Ask::new(protocol, empty))?;
        }
    }
    for (question, server, load) in loads {
        let tally = load.finish_without_loss().with_context(|| format!("{question:?}"))?;
        ensure!(tally.servers.keys().eq([&server]), "not by {server} alone: {tally:?}");
    }
    each_has_one_answer(&capture, &BTreeSet::from([none]))
}

/// Asks each frontend that has a backend, from a new socket each time; returns the question and the name of the backend
/// with each load.
fn ask_all(rig: &Rig) -> Result<Vec<(Ask, String, Load<'_>)>> {
    let [near, far, _] = TAKEN;
    let mut loads = Vec::new();
    for (port, server) in
        [(near, rig.pod(0, 0)?), (far, rig.pod(1, 0)?), (EXTERNAL, rig.pod(0, 0)?)]
    {
        for (family, protocol) in matrix() {
            let question = Ask::new(protocol, rig.node(0)?.addresses().socket(family, port));
            let load = rig.client().peer().load(question, false, PAUSE)?;
            loads.push((question, server.name().to_owned(), load));
        }
    }
    Ok(loads)
}

/// Fails unless between each two sockets as many datagrams went one way as the other, except towards ports that refuse.
fn each_has_one_answer(capture: &Capture, refusing: &BTreeSet<u16>) -> Result<()> {
    let mut counts: BTreeMap<[SocketAddr; 2], [u32; 2]> = BTreeMap::new();
    for frame in capture.frames(|frame| frame.protocol() == Some(UDP)) {
        let (Some(from), Some(to)) = (frame.source(), frame.destination()) else { continue };
        let (ours, theirs) = if frame.outgoing { (from, to) } else { (to, from) };
        counts.entry([ours, theirs]).or_default()[usize::from(frame.outgoing)] += 1;
    }
    counts.retain(|[ours, theirs], _| ours.port() == TARGET || !refusing.contains(&theirs.port()));
    ensure!(counts.len() > 21, "{} pairs of sockets only", counts.len());
    for (ends, [came, left]) in counts {
        ensure!(came == left, "{came} datagrams came and {left} left: {ends:?}");
    }
    Ok(())
}
