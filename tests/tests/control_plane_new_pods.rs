//! The first questions of new pods on a node with busy threads: no question is lost because an interface still waits
//! for its programs.
//!
//! The same pods ask beside the real kube-proxy, whose rules exist before any interface does.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::campaign;
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::first_questions::{Ledger, Trial};
use lb_tests::matrix::{Detector, Proxy, Setup, SharedApiServer, World, services};

/// One of this number of first questions, and of first SYNs, may be lost more than beside kube-proxy; with fewer pods,
/// none.
const LOST: usize = 100;

#[test]
fn first_questions_of_new_pods_are_answered_as_beside_kube_proxy() -> Result<()> {
    let server = SharedApiServer::start()?;
    server.publish(&services()?)?;
    let cpus = thread::available_parallelism()?.get();
    let (pods, delay) = campaign::size((20, Duration::ZERO), (200, Duration::from_millis(5)));
    let loads: &[usize] = campaign::size(&[2], &[0, 2, 12, 48]);
    for busy in loads.iter().map(|per_cpu| per_cpu * cpus) {
        let trial = Trial { pods, delay, busy };
        let theirs = ask(&server, Proxy::KubeProxy(Mode::Nftables), trial)?;
        let ours = ask(&server, Proxy::Ours, trial)?;
        for (name, ledger) in [("kube-proxy", &theirs), ("the agent", &ours)] {
            let of = format!("{pods} new pods, {busy} busy threads, {name}");
            campaign::figure(
                &format!("{of}: first questions lost"),
                ledger.lost.len(),
                "questions",
            );
            campaign::figure(&format!("{of}: first SYNs lost"), ledger.late.len(), "connections");
            let slowest = ledger.answered.last().map_or(0, Duration::as_millis);
            println!(
                "{of}: slowest answer after {slowest} ms, lost {:?}, late {:?}",
                ledger.lost, ledger.late
            );
        }
        // The kernel itself loses a first SYN now and then, beside either proxy.
        let rows = [("questions", ours.lost, theirs.lost, 0), ("SYNs", ours.late, theirs.late, 1)];
        for (what, ours, theirs, more) in rows {
            let most = theirs.len() + usize::from(pods) / LOST + more;
            ensure!(
                ours.len() <= most,
                "first {what} lost: {ours:?}, beside kube-proxy {theirs:?}"
            );
        }
    }
    Ok(())
}

fn ask(server: &SharedApiServer, proxy: Proxy, trial: Trial) -> Result<Ledger> {
    let world = World::start(Setup::new(proxy, Detector::ClusterCidr), server)?;
    let ledger = trial.run(world.rig().node(0)?, World::first_service()?)?;
    ensure!(ledger.answered.len() + ledger.lost.len() == usize::from(trial.pods), "{ledger:?}");
    Ok(ledger)
}
