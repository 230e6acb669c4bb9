//! Statements of the contract besides its matrix, asked of the real kube-proxy and of ours: source ranges, hints,
//! slices in all their shapes, affinity, health checks, `nodePortAddresses`, changes while they run.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::http;
use lb_tests::join_all::{join_all, locked};
use lb_tests::matrix::{
    BRIEFLY_STICKY, Case, Destination, Detector, HEALTH_CHECKS, NODE_PORT_ADDRESSES, Outcome,
    Proxy, SCTP, STICKY, Setup, SharedApiServer, Source, Step, World, frontend, node_port_cases,
    services, steps, without_addresses,
};
use lb_tests::rig::{TARGET, matrix};
use lb_tests::topology::Family;
use lb_tests::traffic::{Ask, Protocol, Sctp};
use lb_tests::wait::{wait_until, wait_until_ok};

/// How long packets may take to follow a change: kube-proxy waits a second between two of its own.
const SOON: Duration = Duration::from_mins(1);
/// Worlds at a time.
const AT_ONCE: usize = 4;

/// The questions that were not answered as expected.
type Found = Mutex<Vec<(usize, Vec<String>)>>;

#[test]
fn rules_beside_the_matrix_are_as_the_contract_says() -> Result<()> {
    let server = SharedApiServer::start()?;
    server.publish(&services()?)?;
    let steps = steps()?;
    let proxies = [Proxy::KubeProxy(Mode::Nftables), Proxy::Ours, Proxy::OursMasquerading];
    let found = Found::default();
    let barrier = Barrier::new(proxies.len() + 1);
    let is_published = AtomicBool::new(true);
    let published: Vec<Result<()>> = thread::scope(|scope| {
        for proxy in proxies {
            let (server, steps, found) = (&server, &steps, &found);
            let pace = (&barrier, &is_published);
            drop(scope.spawn(move || {
                // Pods of the other node are outsiders: none of their answers goes around the node.
                let setup = Setup::new(proxy, Detector::NodeCidr);
                let asked = follow(setup, server, steps, pace);
                locked(found).push(asked);
            }));
        }
        let publish = |step| {
            let done = publish(&server, step);
            is_published.store(done.is_ok(), Ordering::Relaxed);
            // Packets may follow now; and now all were asked.
            let _leaders = [barrier.wait(), barrier.wait()];
            done
        };
        steps.iter().map(publish).collect()
    });
    published.into_iter().collect::<Result<()>>()?;
    judge(&found)
}

#[test]
fn node_ports_are_served_where_the_list_says() -> Result<()> {
    let server = SharedApiServer::start()?;
    server.publish(&services()?)?;
    let proxies = [Proxy::KubeProxy(Mode::Nftables), Proxy::Ours];
    let rows = NODE_PORT_ADDRESSES.iter().flat_map(|row| proxies.map(|proxy| (proxy, row)));
    let rows: Mutex<VecDeque<_>> = Mutex::new(rows.collect());
    let found = Found::default();
    let next = || locked(&rows).pop_front();
    let work = || {
        while let Some((proxy, (list, accepted))) = next() {
            let node_port_addresses = list.iter().map(|&entry| entry.to_owned()).collect();
            let setup = Setup { node_port_addresses, ..Setup::new(proxy, Detector::ClusterCidr) };
            let asked = World::start(setup, &server).and_then(|world| {
                let own = world.rig().node(0)?.addresses();
                let cases = node_port_cases(world.setup(), own, *accepted);
                settle(&world, &format!("{list:?}"), &cases)
            });
            let failed = |error| (0, vec![format!("{error:#}")]);
            let (count, wrong) = asked.unwrap_or_else(failed);
            let wrong = wrong.into_iter().map(|line| format!("{proxy:?}, {line}")).collect();
            locked(&found).push((count, wrong));
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    judge(&found)
}

/// Follows the steps in a world of its own; returns how much was asked, and what was not as expected.
fn follow(
    setup: Setup,
    server: &SharedApiServer,
    steps: &[Step],
    (barrier, is_published): (&Barrier, &AtomicBool),
) -> (usize, Vec<String>) {
    let proxy = setup.proxy;
    let world = World::start(setup, server);
    let mut all = (0, Vec::new());
    for (number, step) in steps.iter().enumerate() {
        let _leader = barrier.wait();
        let asked = match &world {
            // A failure there is reported there.
            _ if !is_published.load(Ordering::Relaxed) => Ok((0, Vec::new())),
            Ok(world) => ask(world, step, number == 0),
            Err(error) => Ok((0, vec![format!("{error:#}")])),
        };
        let (count, wrong) = asked.unwrap_or_else(|error| (0, vec![format!("{error:#}")]));
        all.0 += count;
        all.1.extend(wrong.into_iter().map(|line| format!("{proxy:?}, {line}")));
        let _leader = barrier.wait();
    }
    all
}

fn publish(server: &SharedApiServer, step: &Step) -> Result<()> {
    server.publish(&step.objects)?;
    step.commands.iter().try_for_each(|command| {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        server.control_plane().kubectl(&words).map(drop)
    })
}

/// Asks everything of a step.
fn ask(world: &World, step: &Step, is_first: bool) -> Result<(usize, Vec<String>)> {
    let (mut count, mut wrong) = settle(world, step.name, &(step.cases)(world.setup())?)?;
    if is_first {
        for check in [affinity, affinity_ends, health, sctp] {
            let (more, lines) = check(world)?;
            count += more;
            wrong.extend(lines);
        }
    }
    Ok((count, wrong))
}

/// Asks until everything is as expected; returns how much, and what does not become so.
fn settle(world: &World, what: &str, cases: &[Case]) -> Result<(usize, Vec<String>)> {
    let unlike = |cases: &[Case]| -> Result<Vec<(Case, Outcome)>> {
        let outcomes = world.ask(cases)?;
        let outcomes = outcomes.iter().map(without_addresses);
        let pairs = cases.iter().cloned().zip(outcomes);
        Ok(pairs.filter(|(case, outcome)| case.expected != *outcome).collect())
    };
    let mut open = cases.to_vec();
    let settled = wait_until(SOON, what, || {
        open = unlike(&open).ok()?.into_iter().map(|(case, _)| case).collect();
        open.is_empty().then_some(())
    });
    // The answers of before the change must still be right: everything once more.
    let mut wrong = unlike(if settled.is_ok() { cases } else { &open })?;
    // And once again: netfilter may still follow a flow of before by chance, one with the same source port. It forgets
    // what it has not seen for half a minute.
    let patience = if world.setup().is_kube_proxy() { SOON } else { Duration::ZERO };
    let _forgotten = wait_until(patience, what, || {
        let again: Vec<Case> = wrong.iter().map(|(case, _)| case.clone()).collect();
        wrong = unlike(&again).ok()?;
        wrong.is_empty().then_some(())
    });
    let line = |(case, outcome): &(Case, Outcome)| {
        format!("{what}: {}: expected {:?}, seen {outcome:?}", case.name, case.expected)
    };
    Ok((cases.len(), wrong.iter().map(line).collect()))
}

/// Contract 4: whoever asks has one backend for each port of a Service, by whichever address it is asked.
fn affinity(world: &World) -> Result<(usize, Vec<String>)> {
    let mut wrong = Vec::new();
    let everybody = Source::ALL.into_iter().flat_map(|source| matrix().map(move |of| (source, of)));
    let mut count = 0;
    for (source, (family, protocol)) in everybody {
        let destinations = Destination::ALL.into_iter().filter(|it| *it != Destination::ProxiedVip);
        let asks = destinations
            .map(|destination| Ok(Ask::new(protocol, frontend(destination, STICKY, family)?)))
            .collect::<Result<Vec<_>>>()?;
        // The first one shows whom the others must find: they are asked at once.
        drop(world.servers(source, asks.get(..1).unwrap_or_default(), 1)?);
        let servers = world.servers(source, &asks, 8)?;
        count += asks.len();
        if servers.len() != 1 {
            wrong.push(format!("{source:?} by {family} {protocol} is answered by {servers:?}"));
        }
    }
    Ok((count, wrong))
}

/// Contract 4: a client that asks rarely enough is not remembered.
fn affinity_ends(world: &World) -> Result<(usize, Vec<String>)> {
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
                // Each question begins the second anew.
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

/// Contract 3.11: SCTP is translated as the others are, for pods, for clients outside and for the host.
fn sctp(world: &World) -> Result<(usize, Vec<String>)> {
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

/// Contract 6.1: each family for itself.
fn health(world: &World) -> Result<(usize, Vec<String>)> {
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

fn judge(found: &Found) -> Result<()> {
    let (counts, wrong): (Vec<usize>, Vec<Vec<String>>) = locked(found).drain(..).unzip();
    let (compared, wrong) = (counts.iter().sum::<usize>(), wrong.concat());
    ensure!(wrong.is_empty(), "{} of {compared} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
