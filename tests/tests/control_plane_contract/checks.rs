//! Checks of a world that need more than one question: affinity, SCTP, health checks.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_tests::http;
use lb_tests::join_all::join_all;
use lb_tests::matrix::{
    BRIEFLY_STICKY, Compared, Destination, HEALTH_CHECKS, SCTP, STICKY, Source, World, frontend,
};
use lb_tests::rig::{TARGET, matrix};
use lb_tests::topology::Family;
use lb_tests::traffic::{Ask, Protocol, Sctp};
use lb_tests::wait::{wait_until, wait_until_ok};

use super::SOON;

/// Contract 4: a client has the same backend for each port of a Service, whichever of its addresses it uses.
pub(crate) fn affinity(world: &World) -> Result<Compared> {
    let mut wrong = Vec::new();
    let everybody = Source::ALL.into_iter().flat_map(|source| matrix().map(move |of| (source, of)));
    let mut count = 0;
    for (source, (family, protocol)) in everybody {
        let destinations = Destination::ALL.into_iter().filter(|it| *it != Destination::ProxiedVip);
        let asks = destinations
            .map(|destination| Ok(Ask::new(protocol, frontend(destination, STICKY, family)?)))
            .collect::<Result<Vec<_>>>()?;
        // The first question alone, because it decides the backend that the others must reach; those are asked at the
        // same time.
        drop(world.servers(source, asks.get(..1).unwrap_or_default(), 1)?);
        let servers = world.servers(source, &asks, 8)?;
        count += asks.len();
        if servers.len() != 1 {
            wrong.push(format!("{source:?} by {family} {protocol} is answered by {servers:?}"));
        }
    }
    Ok((count, wrong))
}

/// Contract 4: a client that asks less often than the timeout is forgotten.
pub(crate) fn affinity_ends(world: &World) -> Result<Compared> {
    let rarely = Duration::from_millis(1_300);
    let askers = [
        (Source::Pod, Destination::ClusterIp, Family::V4, Protocol::Tcp),
        (Source::Host, Destination::ClusterIp, Family::V6, Protocol::Udp),
        (Source::Outside, Destination::NodePort, Family::V6, Protocol::Tcp),
        (Source::Outside, Destination::Vip, Family::V4, Protocol::Udp),
    ];
    let wrong = join_all(askers.map(|(source, destination, family, protocol)| {
        move || {
            let asks = [Ask::new(protocol, frontend(destination, BRIEFLY_STICKY, family)?)];
            let first = world.servers(source, &asks, 1)?;
            let mut last = Instant::now();
            let other = wait_until(Duration::from_mins(3), "another backend", || {
                // Each question restarts the timeout of a second.
                if last.elapsed() < rarely {
                    return None;
                }
                last = Instant::now();
                let found = world.servers(source, &asks, 1).ok()?;
                (found != first).then_some(())
            });
            Ok(other.err().map(|error| format!("{source:?} by {protocol}: {error:#}")))
        }
    }))?;
    Ok((askers.len(), wrong.into_iter().flatten().collect()))
}

/// Contract 3.11: SCTP is translated like TCP and UDP, for pods, external clients and hosts.
pub(crate) fn sctp(world: &World) -> Result<Compared> {
    let (mut count, mut wrong) = (0, Vec::new());
    let rig = world.rig();
    for (number, server) in SCTP.into_iter().zip([rig.pod(0, 1)?, rig.pod(1, 1)?]) {
        for (source, destination) in [
            (Source::Pod, Destination::ClusterIp),
            (Source::Pod, Destination::NodePort),
            (Source::Host, Destination::ClusterIp),
            (Source::Host, Destination::Vip),
            (Source::Outside, Destination::NodePort),
            (Source::Outside, Destination::ExternalIp),
        ] {
            for family in Family::ALL {
                count += 1;
                let member = world.member(source)?;
                let own = member.addresses().socket(family, 26_000 + count as u16);
                let there = Sctp::open(server, server.addresses().socket(family, TARGET))?;
                let to = frontend(destination, number, family)?;
                let associated = Sctp::open(member, own)?.associate(&there, to);
                let failed = |error| format!("{source:?} associates with {to}: {error:#}");
                wrong.extend(associated.err().map(failed));
            }
        }
    }
    Ok((count, wrong))
}

/// Contract 6.1: health checks count the endpoints of each family separately.
pub(crate) fn health(world: &World) -> Result<Compared> {
    let (client, node) = (world.rig().client(), world.rig().node(0)?);
    let mut wrong = Vec::new();
    for (port, expected) in HEALTH_CHECKS {
        for (address, expected) in node.addresses().both().into_iter().zip(expected) {
            let asked = wait_until_ok(SOON, "health check", || {
                let (status, body) = http::get(client.home(), (address, port).into(), "/")?;
                let status_expected = if expected == 0 { 503 } else { 200 };
                let says = format!("\"localEndpoints\":{expected}");
                let body: String = body.split_whitespace().collect();
                ensure!(status == status_expected && body.contains(&says), "{status}: {body}");
                Ok(())
            });
            wrong.extend(asked.err().map(|error| format!("{address} {port}: {error:#}")));
        }
    }
    Ok((2 * HEALTH_CHECKS.len(), wrong))
}
