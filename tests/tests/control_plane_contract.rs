//! Statements of the contract besides its matrix, tested with the real kube-proxy and with our agent: source ranges,
//! hints, all forms of slices, affinity, health checks, `nodePortAddresses`, and changes of these at run time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::campaign;
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::join_all::{caught, locked};
use lb_tests::matrix::{
    Account, Case, Compared, Detector, NODE_PORT_ADDRESSES, Outcome, Proxy, SETTINGS, Setup,
    SharedApiServer, Step, World, node_port_cases, services, steps, without_addresses,
};
use lb_tests::wait::wait_until;

#[path = "control_plane_contract/checks.rs"]
mod checks;

/// The deadline for packets to follow a change: kube-proxy waits a second between two syncs.
const SOON: Duration = Duration::from_mins(1);
/// The number of worlds at a time.
const AT_ONCE: usize = 4;

#[test]
fn rules_beside_the_matrix_are_as_the_contract_says() -> Result<()> {
    let account = Account::default();
    let proxies = [Proxy::KubeProxy(Mode::Nftables), Proxy::Ours, Proxy::OursMasquerading];
    // With this detector, pods of the other node count as external clients, so that no answer to them bypasses
    // `node-a`.
    rules(&proxies.map(|proxy| Setup::new(proxy, Detector::NodeCidr)), &account)?;
    for some in campaign::size(&[][..], &SETTINGS).chunks(AT_ONCE) {
        let setups = some.iter().map(|setting| Setup::with(*setting, Detector::NodeCidr));
        rules(&setups.collect::<Vec<_>>(), &account)?;
    }
    judge(account, "rules beside the matrix")
}

/// Runs all steps in parallel worlds.
fn rules(setups: &[Setup], account: &Account) -> Result<()> {
    // The steps change the objects, so no later test gets this control plane.
    let server = SharedApiServer::take_over()?;
    server.publish(&services()?)?;
    let steps = steps()?;
    let barrier = Barrier::new(setups.len() + 1);
    let is_published = AtomicBool::new(true);
    let published: Vec<Result<()>> = thread::scope(|scope| {
        for setup in setups {
            let (server, steps) = (&server, &steps);
            let (barrier, is_published) = (&barrier, &is_published);
            drop(scope.spawn(move || {
                account.add(setup, follow(setup.clone(), server, steps, barrier, is_published));
            }));
        }
        let publish = |step| {
            let done = publish(&server, step);
            is_published.store(done.is_ok(), Ordering::Relaxed);
            // The first wait starts the questions of the step, the second one ends when all are answered.
            let _leaders = [barrier.wait(), barrier.wait()];
            done
        };
        steps.iter().map(publish).collect()
    });
    published.into_iter().collect()
}

#[test]
fn node_ports_are_served_where_the_list_says() -> Result<()> {
    let server = SharedApiServer::take_over()?;
    server.publish(&services()?)?;
    let plain = [(Proxy::KubeProxy(Mode::Nftables), ""), (Proxy::Ours, "")];
    let with = campaign::size(&[][..], &SETTINGS).iter();
    let worlds = plain.iter().chain(with);
    let rows = worlds.flat_map(|with| NODE_PORT_ADDRESSES.iter().map(move |row| (*with, row)));
    let rows: Mutex<VecDeque<_>> = Mutex::new(rows.collect());
    let account = Account::default();
    let next = || locked(&rows).pop_front();
    let work = || {
        while let Some((with, (list, accepted))) = next() {
            let node_port_addresses = list.iter().map(|&entry| entry.to_owned()).collect();
            let setup = Setup { node_port_addresses, ..Setup::with(with, Detector::ClusterCidr) };
            let asked = World::start(setup.clone(), &server).and_then(|world| {
                let own = world.rig().node(0)?.addresses();
                let cases = node_port_cases(world.setup(), own, *accepted);
                ask_until_expected(&world, &format!("{list:?}"), &cases)
            });
            account.add(&setup, of(with.0, asked));
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    judge(account, "NodePorts at addresses of a list")?;
    server.leave();
    Ok(())
}

/// Adds the proxy to each line of a world's result.
fn of(proxy: Proxy, asked: Result<Compared>) -> Compared {
    let (count, wrong) = asked.unwrap_or_else(|error| (0, vec![format!("{error:#}")]));
    (count, wrong.into_iter().map(|line| format!("{proxy:?}, {line}")).collect())
}

/// Runs the steps in one world; returns the number of questions, and the deviations.
fn follow(
    setup: Setup,
    server: &SharedApiServer,
    steps: &[Step],
    barrier: &Barrier,
    is_published: &AtomicBool,
) -> Compared {
    let proxy = setup.proxy;
    let world = caught(|| World::start(setup, server));
    let mut all = Compared::default();
    for (number, step) in steps.iter().enumerate() {
        let _leader = barrier.wait();
        let asked = match &world {
            // A failed publication is reported by the thread that publishes.
            _ if !is_published.load(Ordering::Relaxed) => Ok(Compared::default()),
            Ok(world) => caught(|| ask(world, step, number == 0)),
            Err(error) => Ok((0, vec![format!("{error:#}")])),
        };
        let (count, wrong) = of(proxy, asked);
        all.0 += count;
        all.1.extend(wrong);
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

/// Asks all questions of a step.
fn ask(world: &World, step: &Step, is_first: bool) -> Result<Compared> {
    let (mut count, mut wrong) =
        ask_until_expected(world, step.name, &(step.cases)(world.setup())?)?;
    if is_first {
        for check in [checks::affinity, checks::affinity_ends, checks::health, checks::sctp] {
            let (more, lines) = check(world)?;
            count += more;
            wrong.extend(lines);
        }
    }
    Ok((count, wrong))
}

/// Asks until all outcomes are as expected; returns the number of questions, and the outcomes that stay wrong.
fn ask_until_expected(world: &World, what: &str, cases: &[Case]) -> Result<Compared> {
    let unlike = |cases: &[Case]| -> Result<Vec<(Case, Outcome)>> {
        let outcomes = world.ask(cases)?;
        let outcomes = outcomes.iter().map(without_addresses);
        let pairs = cases.iter().cloned().zip(outcomes);
        Ok(pairs.filter(|(case, outcome)| case.expected != *outcome).collect())
    };
    let mut open = cases.to_vec();
    let outcome = wait_until(SOON, what, || {
        open = unlike(&open).ok()?.into_iter().map(|(case, _)| case).collect();
        open.is_empty().then_some(())
    });
    // An answer that was right early may have been wrong meanwhile, so all questions are asked once more.
    let mut wrong = unlike(if outcome.is_ok() { cases } else { &open })?;
    // And again for a while with kube-proxy: netfilter may still translate by an old flow with the same source port. It
    // forgets a UDP flow that was idle for half a minute.
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

fn judge(account: Account, what: &str) -> Result<()> {
    let (compared, wrong) = account.print(what);
    ensure!(wrong.is_empty(), "{} of {compared} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
