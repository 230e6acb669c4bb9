//! Questions to Services, and the answers that tests require.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{Rig, TARGET};
use crate::manifest::Service;
use crate::topology::{Family, Member};
use crate::traffic::survey::{Ending, Inquiry};
use crate::traffic::{Answer, Ask, Failure, Kept, Protocol};
use crate::wait::wait_until;

/// The deadline for packets to follow a change. A change takes milliseconds.
pub(super) const CHANGE: Duration = Duration::from_secs(30);
/// The longest timeout in milliseconds of one question in a wait, which repeats it.
pub(crate) const IMPATIENT: u64 = 500;
/// The timeout in milliseconds of the first question. An answer takes a millisecond, and a question that was sent
/// before the change has none: the timeout doubles with each question, so that a slow machine can answer too.
const BRIEF: u64 = 100;
/// The time in milliseconds without an answer that counts as silence.
const SILENCE: u64 = 400;
/// How often a refusal may answer only a later SYN, as it does if the machine stalls for a second.
const STANDSTILLS: u32 = 2;

/// Waits until the answer to `from` satisfies `expected`.
pub fn until(
    from: &Member,
    ask: Ask,
    expected: impl Fn(&Result<Answer, Failure>) -> bool,
) -> Result<()> {
    until_within(CHANGE, from, ask, expected)
}

/// As [`until`], for a change that may take longer.
pub fn until_within(
    patience: Duration,
    from: &Member,
    ask: Ask,
    expected: impl Fn(&Result<Answer, Failure>) -> bool,
) -> Result<()> {
    let (mut last, mut within) = (None, 0);
    let found = wait_until(patience, "the change reaches packets", || {
        within = longer(within, IMPATIENT);
        let mut outcome = from.peer().ask(ask.within(within));
        if outcome == Err(Failure::TimedOut) && expected(&outcome) {
            // After a short silence the answer may still come.
            outcome = from.peer().ask(ask.within(IMPATIENT));
        }
        let found = expected(&outcome).then_some(());
        last = Some(outcome);
        found
    });
    found.with_context(|| {
        format!("{} asks {} by {}: last {last:?}", from.name(), ask.to, ask.protocol)
    })
}

/// Returns the timeout of the next question of a wait, at most `longest`, after one of `within`, or after none (0). All
/// are milliseconds.
pub fn longer(within: u64, longest: u64) -> u64 {
    (2 * within).clamp(BRIEF, longest)
}

/// A condition that holds once the server of this name has answered.
pub fn answered_by(name: &str) -> impl Fn(&Result<Answer, Failure>) -> bool {
    move |outcome| outcome.as_ref().is_ok_and(|answer| answer.server == name)
}

/// Every combination of family and transport.
pub fn matrix() -> impl Iterator<Item = (Family, Protocol)> {
    Family::ALL.into_iter().flat_map(|family| Protocol::ALL.map(|protocol| (family, protocol)))
}

/// All clients of a Service with their questions: a pod and the host of node-a use its `ClusterIP`, the external client
/// its `NodePort`; in both families and with both transports.
pub fn askers<'a>(
    rig: &'a Rig,
    service: &Service,
    node_port: u16,
) -> Result<Vec<(&'a Member, Ask)>> {
    let mut askers: Vec<(&Member, Ask)> = Vec::new();
    for (family, protocol) in matrix() {
        let outside = Ask::new(protocol, rig.node(0)?.addresses().socket(family, node_port));
        let inside = Ask::new(protocol, service.frontend(family));
        askers.extend([(&**rig.pod(0, 0)?, inside), (&**rig.node(0)?, inside)]);
        askers.push((rig.client(), outside));
    }
    Ok(askers)
}

/// Opens a flow to the server of the external client, asks twice, and returns the flow.
pub fn answered_outside<'a>(
    rig: &Rig,
    from: &'a Member,
    family: Family,
    protocol: Protocol,
    port: Option<u16>,
) -> Result<Kept<'a>> {
    let question = Ask::new(protocol, rig.client().addresses().socket(family, TARGET));
    let question = port.map_or(question, |port| question.from_port(port));
    let flow = from.peer().keep(question).with_context(|| format!("{question:?}"))?;
    for _ in 0..2 {
        let answer = flow.ask().with_context(|| format!("{question:?}"))?;
        ensure!(answer.server == rig.client().name(), "{answer:?}");
    }
    Ok(flow)
}

/// Asks once, and fails with a description of the question if there is no answer.
pub fn ask(from: &Member, ask: Ask) -> Result<Answer> {
    from.peer().ask(ask).with_context(|| {
        format!(
            "{} asks {} through {}, connected: {}",
            from.name(),
            ask.to,
            ask.protocol,
            ask.connected
        )
    })
}

/// Sends questions of these sizes in bytes, and receives answers of the same size.
pub fn exchange(from: &Member, question: Ask, sizes: &[usize]) -> Result<()> {
    for size in sizes {
        let answer = ask(from, question.sized(*size, *size))?;
        ensure!(answer.peer == question.to, "{answer:?}");
    }
    Ok(())
}

/// Asks once, and fails unless the first packet is refused, as a Service without usable endpoints must do.
pub fn refused(from: &Member, ask: Ask) -> Result<()> {
    let mut outcome = from.peer().ask(ask);
    for _ in 0..STANDSTILLS {
        if outcome == Err(Failure::RefusedLate) {
            outcome = from.peer().ask(ask);
        }
    }
    let (name, to, protocol) = (from.name(), ask.to, ask.protocol);
    let what = || format!("{name} asks {to} through {protocol}, connected: {}", ask.connected);
    ensure!(outcome == Err(Failure::Refused), "{}: {outcome:?}, not refused", what());
    Ok(())
}

/// Asks once, and fails unless there is no answer, as for a policy that drops.
pub fn dropped(from: &Member, ask: Ask) -> Result<()> {
    let outcome = from.peer().ask(ask.within(SILENCE));
    let what = format!("{} asks {} through {}", from.name(), ask.to, ask.protocol);
    ensure!(outcome == Err(Failure::TimedOut), "{what}: {outcome:?}, not silence");
    Ok(())
}

/// Asks all questions at the same time, and fails unless none is answered: each silence takes its full time.
pub fn all_dropped(from: &Member, asks: impl IntoIterator<Item = Ask>) -> Result<()> {
    let inquiry = |ask: Ask| Inquiry { ask: ask.within(SILENCE), outcomes: 2, times: 1 };
    let inquiries: Vec<Inquiry> = asks.into_iter().map(inquiry).collect();
    let endings = from.peer().survey(inquiries.clone())?;
    for (inquiry, endings) in inquiries.iter().zip(endings) {
        let is_silent = endings == [(Ending::Failed(Failure::TimedOut), 1)];
        ensure!(is_silent, "{} asks {:?}: {endings:?}, not silence", from.name(), inquiry.ask);
    }
    Ok(())
}

/// Asks until `count` different servers have answered, and returns their names; every question must be answered.
///
/// One of four equal servers is missed once in 10^14 times.
pub fn different_servers(from: &Member, ask: Ask, count: usize) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for _ in 0..8 {
        found.extend(servers(from, ask, 15)?);
        if found.len() >= count {
            break;
        }
    }
    Ok(found)
}

/// Asks `times` times, and returns the names of the servers; every question must be answered.
pub fn servers(from: &Member, ask: Ask, times: u32) -> Result<BTreeSet<String>> {
    let tally = from.peer().ask_many(ask, times)?;
    let what = format!("{} asks {} through {}", from.name(), ask.to, ask.protocol);
    ensure!(tally.failed() == 0, "{what}: {tally:?}");
    Ok(tally.servers.into_keys().collect())
}
