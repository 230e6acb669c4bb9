//! The way back to kube-proxy: no new flow begins, and known flows continue until they end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lb_common::addr::Protocol;
use lb_common::config::{NodeSettings, Settings};
use lb_common::flow::{Flow, FlowKey, Tuple};

use super::Rules;
use super::reserve::Reserved;
use super::verb::Error;
use crate::datapath::{self, open_here};
use crate::maps::Maps;
use crate::reconcile::Op;
use crate::syscall::monotonic;

/// Intervals between checks: while flows end, and while rules are awaited.
const AGAIN: Duration = Duration::from_secs(1);
const OFTEN: Duration = Duration::from_millis(50);

/// Options of a drain.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    /// Starts only when kube-proxy's rules are in place.
    pub after_rules: bool,
    /// Time limit of the drain, and before it of the wait for rules; `None`: no limit.
    pub within: Option<Duration>,
}

/// Lets packets without a flow pass, and returns once no flow is left, or after the time limit. No agent may run: it
/// would serve new flows again.
pub fn drain(dir: &Path, options: Drain, out: &mut impl Write) -> Result<(), Error> {
    // Without a data path there is no lock to look at either.
    let mut maps = open_here(dir)?;
    datapath::ensure_no_agent(dir)?;
    let settings = maps.settings().map_err(super::Error::Maps)?;
    let flags = settings.node.flags & !Settings::TAKE_OVER | Settings::DRAIN;
    let node = NodeSettings { flags, ..settings.node };
    let drained = Settings { node, ..settings };
    let mut reserved = Reserved::default();
    if options.after_rules {
        await_rules(dir, options.within, &maps, &mut reserved, out)?;
    }
    // Connections are reserved before the switch, because netfilter serves new connections at once, and again below,
    // for flows that began in between.
    let _flows: LiveFlows = hold(&mut reserved, &maps)?;
    maps.apply(&Op::PutSettings(Box::new(drained))).map_err(super::Error::Maps)?;
    super::forget_ended(&maps)?;
    // Without an agent, no Service changes.
    let frontends = super::MapFrontends::of(&maps)?;
    let (began, mut reported) = (Instant::now(), None);
    loop {
        let live = hold(&mut reserved, &maps)?;
        // Each round does this: once a flow has ended, the next socket with its port must begin by kube-proxy's rules.
        frontends.forget_untranslated(&live)?;
        let left = live.len();
        if reported != Some(left) {
            writeln!(out, "{left} flows left")?;
            out.flush()?;
            reported = Some(left);
        }
        if left == 0 || options.within.is_some_and(|within| began.elapsed() >= within) {
            return Ok(());
        }
        thread::park_timeout(AGAIN);
        datapath::ensure_no_agent(dir)?;
    }
}

/// Returns when kube-proxy's rules serve each family that we serve.
///
/// Packets of processes of this host meet these rules before our programs. So from the first moment netfilter must not
/// give away a port of ours.
fn await_rules(
    dir: &Path,
    within: Option<Duration>,
    maps: &Maps,
    reserved: &mut Reserved,
    out: &mut impl Write,
) -> Result<(), Error> {
    let rows = maps.backends().map_err(super::Error::Maps)?;
    let served = |v4: bool| rows.iter().any(|row| row.service != 0 && row.ip.is_v4() == v4);
    let began = Instant::now();
    let _flows: LiveFlows = hold(reserved, maps)?;
    writeln!(out, "every flow is reserved in netfilter; waiting for kube-proxy's rules")?;
    out.flush()?;
    while !Rules::serve([served(true), served(false)]) {
        if let Some(within) = within
            && began.elapsed() >= within
        {
            return Err(Error::NoRules(within));
        }
        thread::park_timeout(OFTEN);
        datapath::ensure_no_agent(dir)?;
        let _flows: LiveFlows = hold(reserved, maps)?;
    }
    Ok(())
}

/// Flows that have not expired, by the tuple that their clients send.
type LiveFlows = BTreeSet<(Protocol, Tuple)>;

/// Reserves the connections of all flows in netfilter, and returns the flows that have not expired.
fn hold(reserved: &mut Reserved, maps: &Maps) -> Result<LiveFlows, Error> {
    let settings = maps.settings().map_err(super::Error::Maps)?;
    let all = maps.flows().all().map_err(super::Error::Maps)?;
    let all: BTreeMap<FlowKey, Flow> = all.into_iter().collect();
    let live = live(&settings, &all);
    reserved.hold(&settings, &all, &live)?;
    Ok(live)
}

/// Returns the flows that have not expired. Without an agent no sweep removes expired entries.
fn live(settings: &Settings, all: &BTreeMap<FlowKey, Flow>) -> LiveFlows {
    let now = u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX);
    let is_live = |(key, flow): &(&FlowKey, &Flow)| {
        let opposite = key.opposite(flow);
        let reply = all.get(&opposite).filter(|reply| key.has_opposite(&opposite, reply));
        flow.is_forward() && !settings.node.lifetimes.is_over(key, flow, reply, now)
    };
    all.iter().filter(is_live).map(|(key, _)| (key.protocol, key.tuple)).collect()
}
