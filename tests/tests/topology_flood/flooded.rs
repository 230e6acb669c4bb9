//! A flood of connections that never come about, at a Service in use: its other clients lose nothing.

use anyhow::{Result, ensure};
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, askers};
use lb_tests::topology::Shape;
use lb_tests::traffic::{Answer, Kept, Protocol, is_spoofed};
use lb_tests::wait;

use super::flood::Flood;
use super::{NODE_PORT, STREAM, everybody_asks, none_is_lost, pour, protected, rig};

in_both_shapes!(flood_of_a_service_costs_its_other_clients_nothing);

/// Its backends listen: they answer each SYN, and a blind ACK with a RST.
fn flood_of_a_service_costs_its_other_clients_nothing(shape: Shape) -> Result<()> {
    let (rig, [web, _]) = rig(shape, None)?;
    let idle = idle_connections(&rig, &web)?;
    let loads = everybody_asks(&rig, &web)?;
    wait::pass(STREAM);
    let mut sent = 0;
    for flood in [Flood::of_blind_handshakes(), Flood::of_unacknowledged_handshakes()] {
        let poured = pour(&rig, flood, |family| {
            let outside = vec![rig.node(0)?.addresses().socket(family, NODE_PORT)];
            Ok((outside, web.frontend(family)))
        })?;
        ensure!(poured > flood.packets, "only {poured} packets of floods were sent");
        sent += poured;
    }
    let (answers, _slowest) = none_is_lost(&rig, loads)?;
    for (kept, before) in &idle {
        let now = kept.ask()?;
        ensure!(now.server == before.server, "{now:?} after {before:?}");
    }
    let protected = protected(&rig, |tuple| {
        [tuple.source, tuple.destination].iter().any(|ip| is_spoofed((*ip).into()))
    })?;
    ensure!(protected.is_empty(), "protected: {} such as {:?}", protected.len(), protected.first());
    let what = format!("blind handshakes with a Service in use, {shape:?} pods");
    campaign::figure(&format!("packets of {what}"), sent, "packets");
    campaign::figure(&format!("answers beside {what}, none lost"), answers, "answers");
    Ok(())
}

/// Connections of every client that were used once and are silent from then on.
fn idle_connections<'a>(rig: &'a Rig, web: &Service) -> Result<Vec<(Kept<'a>, Answer)>> {
    let asked = askers(rig, web, NODE_PORT)?.into_iter();
    let asked = asked.filter(|(_, question)| question.protocol == Protocol::Tcp);
    asked
        .map(|(from, question)| {
            let kept = from.peer().keep(question)?;
            let answer = kept.ask()?;
            Ok((kept, answer))
        })
        .collect()
}
