//! Thousands of endpoint changes while all clients ask: every question is answered, and by a backend that the service
//! has had.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::campaign;
use lb_tests::differential::random::Random;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, askers};
use lb_tests::topology::{Pod, Shape, Topology};
use lb_tests::traffic::{Load, PAUSE};
use lb_tests::wait::wait_until;

/// The largest number of changes that the test writes.
const MOST: u32 = 500_000;
/// The deadline for the agent to program a change.
const SOON: Duration = Duration::from_secs(30);
const NODE_PORTS: [u16; 2] = [30_080, 30_081];

#[test]
fn every_answer_is_from_a_backend_of_the_service_through_thousands_of_changes() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let service = |which: usize| -> Result<Service> {
        let (name, index) = (["web", "rival"][which], [10, 11][which]);
        let service = Service::new(name, index)?.port(80, TARGET).node_port(NODE_PORTS[which]);
        Ok(service.pods(&pods_of(&rig, which)?))
    };
    let services = [service(0)?, service(1)?];
    let rig = rig.start(&[&services[0], &services[1]])?;
    let agent = rig.agent(0)?;
    let syncs = || agent.metric(&["kubeproxy_sync_proxy_rules_duration_seconds_count", "IPv4"]);
    let (before, began) = (syncs()?, Instant::now());
    let mut askings = Vec::new();
    for which in [0, 1] {
        let loads = everybody_asks(&rig, &services[which], NODE_PORTS[which])?;
        let names: BTreeSet<&str> = pods_of(&rig, which)?.iter().map(|pod| pod.name()).collect();
        askings.extend(loads.into_iter().map(|load| (names.clone(), load)));
    }
    let least = campaign::size(1_000, 5_000);
    // The smallest number of syncs: of two changes at the same time the agent sees only the last.
    let least_syncs = campaign::size(100.0, 500.0);
    let (mut random, mut written) = (Random::new(11), 0);
    while written < least || syncs()? - before < least_syncs {
        ensure!(written < MOST, "{written} written, {} programmed", syncs()? - before);
        for _ in 0..50 {
            // Both services change, so that rows and lines of one are reused by the other.
            let which = random.below(2);
            let pods = pods_of(&rig, which)?;
            let some = [&pods[..1], &pods[1..], &pods[..]][random.below(3)];
            rig.manifests().apply(&services[which].clone().pods(some))?;
            written += 1;
        }
    }
    let (programmed, took) = (syncs()? - before, began.elapsed());
    // All endpoints return for good, because on a slow machine a client may not have reached each of them yet.
    services.iter().try_for_each(|service| rig.manifests().apply(service))?;
    let mut total = 0;
    for (allowed, (what, load)) in askings {
        wait_until(SOON, &what, || {
            let tally = load.so_far().ok()?;
            (tally.failed() > 0 || tally.servers.len() >= allowed.len()).then_some(())
        })?;
        let tally = load.finish_without_loss().with_context(|| what.clone())?;
        let found: BTreeSet<&str> = tally.servers.keys().map(String::as_str).collect();
        ensure!(found == allowed, "{what}: {tally:?}");
        total += tally.answered();
    }
    println!("{programmed} times programmed, {took:?}");
    campaign::figure("changes of endpoints under traffic", written, "changes");
    campaign::figure("answers, none lost", total, "answers");
    let directory = rig.manifests().directory().to_str().context("a path in UTF-8")?.to_owned();
    wait_until(SOON, "the maps are what was written last", || {
        agent.command(&["lb", "diff", "--manifests", &directory]).is_ok().then_some(())
    })
}

/// The pods of a service, one on each node. No other service has them.
fn pods_of(rig: &Rig, which: usize) -> Result<[&Pod; 2]> {
    Ok([rig.pod(0, which)?, rig.pod(1, which)?])
}

/// Loads of pods, the host and the external client, in both families and with both transports, through new sockets.
fn everybody_asks<'a>(
    rig: &'a Rig,
    service: &Service,
    node_port: u16,
) -> Result<Vec<(String, Load<'a>)>> {
    let mut loads = Vec::new();
    for (from, question) in askers(rig, service, node_port)? {
        let what = format!("{} asks {} by {}", from.name(), question.to, question.protocol);
        loads.push((what, from.peer().load(question, false, PAUSE)?));
    }
    Ok(loads)
}
