//! Floods of connections that never come about, and of datagrams that backends drop, at a Service in use: its other
//! clients lose nothing.

use anyhow::{Result, ensure};
use lb_tests::campaign;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, askers};
use lb_tests::topology::Shape;
use lb_tests::traffic::{Answer, Kept, Protocol, is_spoofed};
use lb_tests::wait;

use super::crowd::{PORTS, rig_with_few_ports};
use super::flood::{FIRST_PORT, Flood};
use super::{
    CAPACITY, NODE_PORT, STREAM, everybody_asks, none_is_lost, pour, protected, rig, rig_of,
};

in_both_shapes!(
    flood_of_a_service_costs_its_other_clients_nothing,
    flood_of_answered_datagrams_costs_other_clients_nothing,
    flood_of_spoiled_datagrams_costs_other_clients_nothing,
);

/// Its backends listen: they answer each SYN, and a blind ACK with a RST.
fn flood_of_a_service_costs_its_other_clients_nothing(shape: Shape) -> Result<()> {
    let (rig, [web, _]) = rig(shape, None)?;
    let idle = idle_connections(&rig, &web)?;
    let loads = everybody_asks(&rig, &web)?;
    wait::pass(STREAM);
    let mut sent = 0;
    for flood in [Flood::of_blind_handshakes(), Flood::of_unacknowledged_handshakes()] {
        let poured = pour_at(&rig, &web, flood)?;
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

/// Floods a Service at its NodePort from outside and at its ClusterIP from inside. Returns the number of packets.
fn pour_at(rig: &Rig, web: &Service, flood: Flood) -> Result<u32> {
    pour(rig, flood, |family| {
        let outside = vec![rig.node(0)?.addresses().socket(family, NODE_PORT)];
        Ok((outside, web.frontend(family)))
    })
}

/// As [`pour_at`]: each source sends again, after the time from which on an answered flow is protected.
fn pour_twice(rig: &Rig, web: &Service, flood: Flood) -> Result<u32> {
    let first = pour_at(rig, web, flood)?;
    wait::pass(STREAM);
    Ok(first + pour_at(rig, web, flood)?)
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

/// The flood takes every port towards the remote backends. Each of its sources sends again after the time from which on
/// an answered flow would be protected.
fn flood_of_spoiled_datagrams_costs_other_clients_nothing(shape: Shape) -> Result<()> {
    let (rig, web) = rig_with_few_ports(shape, None, |rig| Ok(rig.pods()))?;
    let loads = everybody_asks(&rig, &web)?;
    wait::pass(STREAM);
    let (flood, before) = (Flood::of_spoiled_datagrams(), dropped(&rig)?);
    let sent = pour_twice(&rig, &web, flood)?;
    let (answers, _slowest) = none_is_lost(&rig, loads)?;
    let dropped = dropped(&rig)? - before;
    ensure!(dropped > i64::from(sent / 2), "backends dropped only {dropped} of {sent} datagrams");
    let displaced = rig.agent(0)?.metric(&["lb_events_total", "\"port_displaced\""])?;
    ensure!(displaced > f64::from(PORTS), "the flood has not taken all ports towards a backend");
    let [pod4, pod6] = rig.pod(0, 0)?.addresses().both();
    let is_flooded = |ip, port: u16| {
        let is_pods = [pod4, pod6].contains(&ip) && port != TARGET;
        is_spoofed(ip) || is_pods && port.wrapping_sub(FIRST_PORT) < flood.ports
    };
    let protected = protected(&rig, |tuple| {
        is_flooded(tuple.source.into(), tuple.source_port.get())
            || is_flooded(tuple.destination.into(), tuple.destination_port.get())
    })?;
    ensure!(protected.is_empty(), "protected: {} such as {:?}", protected.len(), protected.first());
    let what = format!("spoiled datagrams to a Service in use, {shape:?} pods");
    campaign::figure(&format!("packets of {what}"), sent, "packets");
    campaign::figure(&format!("answers beside {what}, none lost"), answers, "answers");
    Ok(())
}

/// Backends answer the flood, and each of its sources sends again: the flows become protected, and fill the table of
/// protected flows. New flows of other clients stay transient then.
fn flood_of_answered_datagrams_costs_other_clients_nothing(shape: Shape) -> Result<()> {
    let (rig, [web, _]) = rig_of(shape, Some(CAPACITY), &["FLOWS"])?;
    let loads = everybody_asks(&rig, &web)?;
    wait::pass(STREAM);
    let sent = pour_twice(&rig, &web, Flood::of_answered_datagrams())?;
    let later = everybody_asks(&rig, &web)?;
    wait::pass(STREAM);
    let (answers, _slowest) = none_is_lost(&rig, loads)?;
    let (more, _slowest) = none_is_lost(&rig, later)?;
    let unprotected = rig.agent(0)?.metric(&["lb_events_total", "\"flow_unprotected\""])?;
    ensure!(unprotected > 0.0, "{sent} datagrams have not filled the table of protected flows");
    let what = format!("answered datagrams to a Service in use, {shape:?} pods");
    campaign::figure(&format!("packets of {what}"), sent, "packets");
    campaign::figure(&format!("answers beside {what}, none lost"), answers + more, "answers");
    Ok(())
}

/// The number of datagrams that backends have dropped because of a wrong checksum, of both families.
fn dropped(rig: &Rig) -> Result<i64> {
    let mut sum = 0;
    for pod in rig.pods() {
        sum += pod.netns().counter("snmp", "Udp InCsumErrors")?;
        sum += pod.netns().counter("snmp6", "Udp6InCsumErrors")?;
    }
    Ok(sum)
}
