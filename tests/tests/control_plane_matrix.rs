//! The same questions to the real kube-proxy and to our agent in a real cluster: all of contract 2.4 and 3.3.
//!
//! `LB_MATRIX=OursMasquerading` in the environment restricts the run to worlds whose setup contains this text.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use lb_tests::campaign;
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::join_all::locked;
use lb_tests::matrix::{
    Account, Case, Detector, NATIVE, Proxy, SETTINGS, Setup, SharedApiServer, World, expected,
    questions, services,
};
use lb_tests::topology::Shape;

/// The number of worlds at a time: more than CPUs, because worlds mostly wait for silence.
const AT_ONCE: usize = 4;
/// Outside a campaign, a world with a setting gets every fifth question. The step meets each source, destination,
/// policy, state, family and protocol, because 24 questions are about one destination of a Service.
const SAMPLE: usize = 5;

/// A world, and its questions: the index of the first one, and the step to the next.
type Asked = (Setup, (usize, usize));

fn setups() -> Vec<Asked> {
    let proxies = [Proxy::KubeProxy(Mode::Nftables), Proxy::Ours, Proxy::OursMasquerading];
    let mut all = Vec::new();
    for proxy in proxies {
        all.extend(detectors().map(|detector| Setup::new(proxy, detector)));
        // `masquerade: edge` ignores `masqueradeAll`, so only the other mode is tested with it.
        let with_all = [Detector::ClusterCidr, Detector::None];
        for detector in with_all.into_iter().filter(|_| proxy != Proxy::Ours) {
            all.push(Setup { masquerade_all: true, ..Setup::new(proxy, detector) });
        }
        all.push(bridged(Setup::new(proxy, Detector::Device)));
    }
    all.push(Setup::new(Proxy::KubeProxy(Mode::Iptables), Detector::ClusterCidr));
    let mut all: Vec<Asked> = all.into_iter().map(|setup| (setup, (0, 1))).collect();
    all.extend(campaign::size(some_with_settings(), all_with_settings()));
    if let Ok(only) = std::env::var("LB_MATRIX") {
        all.retain(|(setup, _)| format!("{setup:?}").contains(&only));
    }
    all
}

const fn detectors() -> [Detector; 5] {
    use Detector::{ClusterCidr, ClusterCidr4, Device, NodeCidr, None};
    [ClusterCidr, ClusterCidr4, NodeCidr, Device, None]
}

fn bridged(setup: Setup) -> Setup {
    Setup { shape: Shape::Bridged, ..setup }
}

/// One world for each setting, with alternating shapes and a sample of the questions.
fn some_with_settings() -> Vec<Asked> {
    let world = |(number, setting): (usize, _)| {
        let setup = Setup::with(setting, Detector::Device);
        let setup = if number.is_multiple_of(2) { setup } else { bridged(setup) };
        (setup, (number % SAMPLE, SAMPLE))
    };
    SETTINGS.into_iter().enumerate().map(world).collect()
}

/// One world for each combination of setting and shape, with all questions.
fn all_with_settings() -> Vec<Asked> {
    let worlds = SETTINGS.into_iter().flat_map(|setting| {
        let routed = detectors().map(|detector| Setup::with(setting, detector));
        routed.into_iter().chain([bridged(Setup::with(setting, Detector::Device))])
    });
    worlds.map(|setup| (setup, (0, 1))).collect()
}

#[test]
fn every_cell_of_the_matrix_is_as_the_contract_says() -> Result<()> {
    let server = SharedApiServer::start()?;
    server.publish(&services()?)?;
    let setups = Mutex::new(VecDeque::from(setups()));
    let account = Account::default();
    let next = || locked(&setups).pop_front();
    let work = || {
        while let Some((setup, (first, step))) = next() {
            let failed = |error| (0, vec![format!("{setup:?}: {error:#}")]);
            let compared = compare(&server, setup.clone(), first, step).unwrap_or_else(failed);
            account.add(&setup, compared);
        }
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(work))));
    let (compared, wrong) = account.print("questions of the matrix");
    ensure!(wrong.is_empty(), "{} of {compared} are wrong:\n{}", wrong.len(), wrong.join("\n"));
    ensure!(compared > 0, "no setup contains the text of LB_MATRIX");
    Ok(())
}

/// Asks the questions in one world; returns their number, and the deviations.
fn compare(
    server: &SharedApiServer,
    setup: Setup,
    first: usize,
    step: usize,
) -> Result<(usize, Vec<String>)> {
    let cases: Vec<Case> = questions()?
        .into_iter()
        .skip(first)
        .step_by(step)
        .map(|question| Ok(question.expecting(expected(&setup, &question)?)))
        .collect::<Result<_>>()?;
    let world = World::start(setup, server)?;
    let outcomes = world.ask(&cases)?;
    if world.setup().has(NATIVE) {
        let agent = world.agent().context("our agent")?;
        let count = agent.metric(&["lb_datapath_packets_total", "external_xdp", "new_flow"])?;
        ensure!(count > 0.0, "XDP began no flow");
    }
    let wrong = cases.iter().zip(&outcomes).filter(|(case, outcome)| case.expected != **outcome);
    let line = |(case, outcome): (&Case, _)| {
        let setup = world.setup();
        format!("{setup:?}\n  {}: expected {:?}, seen {outcome:?}", case.name, case.expected)
    };
    Ok((cases.len(), wrong.map(line).collect()))
}
