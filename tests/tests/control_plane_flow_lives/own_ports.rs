//! Connections that leave node-a from a port that is a `NodePort`, or becomes one: those of the node, and those of a pod
//! that netfilter masquerades. The answers arrive at the frontend and are not taken for questions to its Service.

use anyhow::{Context as _, Result, ensure};
use lb_tests::manifest::Service;
use lb_tests::rig::{
    TARGET, answered_by, answered_outside, ask, masquerade, masquerade_no_more, matrix, until,
};
use lb_tests::topology::{Family, Member};
use lb_tests::traffic::open::{Open, open, socket};
use lb_tests::traffic::{Ask, Failure, Protocol};
use socket2::Type;

use super::{Life, NODE_PORTS};

/// Ports that become `NodePort`s of Services with a near backend, with a far one, and without endpoints.
const LATER: [u16; 3] = [30_070, 30_071, 30_072];
const NAMES: [&str; 3] = ["life-later-near", "life-later-far", "life-later-none"];

/// The node and its pods talk to a server outside from ports that are `NodePorts`.
pub(crate) fn are_free_for_the_node_and_its_pods(life: &Life<'_>) -> Result<()> {
    let rig = life.rig();
    for (family, protocol) in matrix() {
        for port in NODE_PORTS {
            drop(answered_outside(rig, rig.node(0)?, family, protocol, Some(port))?);
        }
    }
    for port in NODE_PORTS {
        let mut all = open_masqueraded(life, port)?;
        // The ports are both: the Services are served while the connections are open.
        for (family, protocol) in matrix() {
            for (_, number, backend) in life.served()? {
                let to = rig.node(0)?.addresses().socket(family, number);
                let answer = ask(rig.client(), Ask::new(protocol, to))?;
                ensure!(answer.server == backend.name(), "{answer:?}");
            }
        }
        all.iter_mut().try_for_each(Open::is_alive).with_context(|| format!("from {port}"))?;
    }
    masquerade_no_more(rig.node(0)?)
}

/// Open connections go on when their port becomes a `NodePort`.
pub(crate) fn stay_with_open_connections(life: &Life<'_>) -> Result<()> {
    let rig = life.rig();
    let mut all = Vec::new();
    for port in LATER {
        for mut open in open_own(life, port)?.into_iter().chain(open_masqueraded(life, port)?) {
            // The others stay silent until their port is a NodePort.
            if port % 2 == 0 {
                open.is_alive()?;
            }
            all.push((port, open));
        }
    }
    give_away(life)?;
    for round in 0..2 {
        for (port, open) in &mut all {
            open.is_alive().with_context(|| format!("from {port}, round {round}, {open:?}"))?;
        }
    }
    masquerade_no_more(rig.node(0)?)?;
    NAMES.iter().try_for_each(|name| {
        life.server.control_plane().kubectl(&["delete", "service", name]).map(drop)
    })
}

/// Publishes Services with these ports, and waits until they are served.
fn give_away(life: &Life<'_>) -> Result<()> {
    let rig = life.rig();
    let backends = [vec![rig.pod(0, 1)?], vec![rig.pod(1, 1)?], vec![]];
    for (((name, index), port), backends) in NAMES.into_iter().zip(214..).zip(LATER).zip(&backends)
    {
        let service = Service::new(name, index)?.port(80, TARGET).node_port(port);
        life.server.publish(&service.pods(backends).objects())?;
        for (family, protocol) in matrix() {
            let to = rig.node(0)?.addresses().socket(family, port);
            let question = Ask::new(protocol, to);
            // From another node, towards which no connection of this trial is open.
            if let Some(backend) = backends.first() {
                until(rig.node(1)?, question, answered_by(backend.name()))?;
            } else if protocol == Protocol::Udp {
                // kube-proxy refuses TCP over IPv6 after a second only (ADR 0011).
                until(rig.node(1)?, question, |it| *it == Err(Failure::Refused))?;
            }
        }
    }
    Ok(())
}

/// Opens connections of the node from a port, each to a server of its own outside.
fn open_own(life: &Life<'_>, port: u16) -> Result<Vec<Open>> {
    open_all(life, life.rig().node(0)?, port, port)
}

/// Opens connections of a pod that the node masquerades with a port, each to a server of its own outside.
fn open_masqueraded(life: &Life<'_>, port: u16) -> Result<Vec<Open>> {
    let rig = life.rig();
    let (node, pod) = (rig.node(0)?, rig.pod(0, 0)?);
    // A CNI plugin with random ports chooses such a port from time to time.
    masquerade(node, pod.addresses().both(), rig.client(), &port.to_string())?;
    open_all(life, pod, 0, port)
}

/// Opens connections of a client from a port (0: any), which their servers must see as port `seen`.
fn open_all(life: &Life<'_>, client: &Member, port: u16, seen: u16) -> Result<Vec<Open>> {
    let (outside, mut all) = (life.rig().client(), Vec::new());
    for family in Family::ALL {
        for kind in [Type::STREAM, Type::DGRAM] {
            let server = socket(outside, family, kind, 0)?;
            let opened = open(socket(client, family, kind, port)?, server);
            let (open, from) = opened.with_context(|| format!("{family} {kind:?} from {seen}"))?;
            ensure!(from == seen, "from {from}, not {seen}");
            all.push(open);
        }
    }
    Ok(all)
}
