//! The same questions to the real kube-proxy and to ours, in a real cluster: contract 2.4 and 3.3 whole.
//!
//! `LB_MATRIX=OursMasquerading` in the environment asks only in worlds whose setup contains these words.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;

use anyhow::{Result, ensure};
use lb_tests::campaign;
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::join_all::locked;
use lb_tests::matrix::{
    Case, Detector, Proxy, Setup, SharedApiServer, World, expected, questions, services,
};
use lb_tests::topology::Shape;

/// Worlds at a time: more than the processors, since they wait for silence.
const AT_ONCE: usize = 4;

fn setups() -> Vec<Setup> {
    let proxies = [Proxy::KubeProxy(Mode::Nftables), Proxy::Ours, Proxy::OursMasquerading];
    let mut all = Vec::new();
    for proxy in proxies {
        for detector in [
            Detector::ClusterCidr,
            Detector::ClusterCidr4,
            Detector::NodeCidr,
            Detector::Device,
            Detector::None,
        ] {
            all.push(Setup::new(proxy, detector));
        }
        // With `masquerade: edge` it is ignored.
        let with_all = [Detector::ClusterCidr, Detector::None];
        for detector in with_all.into_iter().filter(|_| proxy != Proxy::Ours) {
            all.push(Setup { masquerade_all: true, ..Setup::new(proxy, detector) });
        }
        all.push(Setup { shape: Shape::Bridged, ..Setup::new(proxy, Detector::Device) });
    }
    all.push(Setup::new(Proxy::KubeProxy(Mode::Iptables), Detector::ClusterCidr));
    if let Ok(only) = std::env::var("LB_MATRIX") {
        all.retain(|setup| format!("{setup:?}").contains(&only));
    }
    all
}

#[test]
fn every_cell_of_the_matrix_is_as_the_contract_says() -> Result<()> {
    let server = SharedApiServer::start()?;
    server.publish(&services()?)?;
    let setups = Mutex::new(VecDeque::from(setups()));
    let found: Mutex<Vec<(usize, Vec<String>)>> = Mutex::default();
    let next = || locked(&setups).pop_front();
    let work = || {
        while let Some(setup) = next() {
            let compared = compare(&server, setup.clone());
            let failed = |error| (0, vec![format!("{setup:?}: {error:#}")]);
            let compared = compared.unwrap_or_else(failed);
            locked(&found).push(compared);
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let (counts, wrong): (Vec<usize>, Vec<Vec<String>>) = locked(&found).drain(..).unzip();
    let (compared, wrong) = (counts.iter().sum::<usize>(), wrong.concat());
    campaign::figure("questions answered as the contract says", compared, "questions");
    ensure!(wrong.is_empty(), "{} of {compared} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    ensure!(compared > 0, "no setup has these words");
    Ok(())
}

/// Asks everything in one world; returns how much, and what was not as expected.
fn compare(server: &SharedApiServer, setup: Setup) -> Result<(usize, Vec<String>)> {
    let cases: Vec<Case> = questions()?
        .into_iter()
        .map(|question| Ok(question.expecting(expected(&setup, &question)?)))
        .collect::<Result<_>>()?;
    let world = World::start(setup, server)?;
    let outcomes = world.ask(&cases)?;
    let wrong = cases.iter().zip(&outcomes).filter(|(case, outcome)| case.expected != **outcome);
    let line = |(case, outcome): (&Case, _)| {
        let setup = world.setup();
        format!("{setup:?}\n  {}: expected {:?}, seen {outcome:?}", case.name, case.expected)
    };
    Ok((cases.len(), wrong.map(line).collect()))
}
