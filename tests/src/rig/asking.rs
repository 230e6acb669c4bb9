//! Questions to Services, and the answers that tests require.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::Rig;
use crate::manifest::Service;
use crate::topology::{Family, Member};
use crate::traffic::survey::{Ending, Inquiry};
use crate::traffic::{Answer, Ask, Failure, Protocol};
use crate::wait::wait_until;

/// How long a change may take until packets follow it: an eternity beside the milliseconds it takes.
pub(super) const CHANGE: Duration = Duration::from_secs(30);
/// Milliseconds of patience of one question of a wait: it is asked again.
pub(crate) const IMPATIENT: u64 = 500;
/// Milliseconds without an answer that are silence.
const SILENCE: u64 = 400;
/// How often a refusal may answer a later SYN only: as it does where the machine stands still for a second.
const STANDSTILLS: u32 = 2;

/// Waits until what `from` is answered satisfies `expected`.
pub fn until(
    from: &Member,
    ask: Ask,
    expected: impl Fn(&Result<Answer, Failure>) -> bool,
) -> Result<()> {
    until_within(CHANGE, from, ask, expected)
}

/// The same for a change that may take longer.
pub fn until_within(
    patience: Duration,
    from: &Member,
    ask: Ask,
    expected: impl Fn(&Result<Answer, Failure>) -> bool,
) -> Result<()> {
    let mut last = None;
    let found = wait_until(patience, "the change reaches packets", || {
        let outcome = from.peer().ask(ask.within(IMPATIENT));
        let found = expected(&outcome).then_some(());
        last = Some(outcome);
        found
    });
    found.with_context(|| {
        format!("{} asks {} by {}: last {last:?}", from.name(), ask.to, ask.protocol)
    })
}

/// Whether the server of this name has answered.
pub fn answered_by(name: &str) -> impl Fn(&Result<Answer, Failure>) -> bool {
    move |outcome| outcome.as_ref().is_ok_and(|answer| answer.server == name)
}

/// Every family with every transport.
pub fn matrix() -> impl Iterator<Item = (Family, Protocol)> {
    Family::ALL.into_iter().flat_map(|family| Protocol::ALL.map(|protocol| (family, protocol)))
}

/// The clients of a Service and their questions: a pod and the host of node-a its `ClusterIP`, the client outside its
/// `NodePort`; in both families and by both transports.
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

/// Asks, and fails with the whole question in words when there is no answer.
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

/// Asks, and fails unless the first packet is answered with "refused": what an unusable service must say.
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

/// Asks, and fails unless nothing comes back: what a policy that drops looks like.
pub fn dropped(from: &Member, ask: Ask) -> Result<()> {
    let outcome = from.peer().ask(ask.within(SILENCE));
    let what = format!("{} asks {} through {}", from.name(), ask.to, ask.protocol);
    ensure!(outcome == Err(Failure::TimedOut), "{what}: {outcome:?}, not silence");
    Ok(())
}

/// Asks all at once, and fails unless nothing comes back to any: silence takes its time.
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

/// Asks until so many different servers have answered, and returns who they are; every question must be answered.
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

/// Asks `times` times, and returns who answered; every question must be answered.
pub fn servers(from: &Member, ask: Ask, times: u32) -> Result<BTreeSet<String>> {
    let tally = from.peer().ask_many(ask, times)?;
    let what = format!("{} asks {} through {}", from.name(), ask.to, ask.protocol);
    ensure!(tally.failed() == 0, "{what}: {tally:?}");
    Ok(tally.servers.into_keys().collect())
}
