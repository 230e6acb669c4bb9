//! The way back to kube-proxy: no flow begins any more, and known flows continue until they end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lb_common::addr::Protocol;
use lb_common::config::Settings;
use lb_common::flow::{Flow, FlowKey, Tuple};

use super::verb::Error;
use crate::maps::Maps;
use crate::reconcile::Op;
use crate::{datapath, run, show};

/// From one look to the next.
const AGAIN: Duration = Duration::from_secs(1);

/// Lets packets without a flow pass, and returns once no flow is left, or after so long. No agent may run: it would serve
/// again.
pub fn drain(dir: &Path, within: Option<Duration>, out: &mut impl Write) -> Result<(), Error> {
    datapath::ensure_no_agent(dir)?;
    let mut maps = show::open(dir)?;
    let settings = maps.settings().map_err(super::Error::Maps)?;
    let flags = settings.flags & !Settings::TAKE_OVER | Settings::DRAIN;
    let drained = Op::PutSettings(Box::new(Settings { flags, ..settings }));
    maps.apply(&drained).map_err(super::Error::Maps)?;
    super::forget_ended(&maps)?;
    // Without an agent no Service changes.
    let frontends = super::Frontends::of(&maps)?;
    let (began, mut told) = (Instant::now(), None);
    loop {
        let known = live(&maps)?;
        // Each time again: where a flow has ended, the next socket with its port is to begin by kube-proxy's rules.
        frontends.forget_untranslated(&known)?;
        let left = known.len();
        if told != Some(left) {
            writeln!(out, "{left} flows left")?;
            out.flush()?;
            told = Some(left);
        }
        if left == 0 || within.is_some_and(|within| began.elapsed() >= within) {
            return Ok(());
        }
        thread::park_timeout(AGAIN);
        datapath::ensure_no_agent(dir)?;
    }
}

/// Flows that are not over, by what their clients send. Nobody sweeps: entries of those that are lie there still.
fn live(maps: &Maps) -> Result<BTreeSet<(Protocol, Tuple)>, Error> {
    let all = maps.all_flows().map_err(super::Error::Maps)?;
    let settings = maps.settings().map_err(super::Error::Maps)?;
    let all: BTreeMap<FlowKey, Flow> = all.into_iter().collect();
    let now = u64::try_from(run::monotonic().as_nanos()).unwrap_or(u64::MAX);
    let is_live = |(key, flow): &(&FlowKey, &Flow)| {
        flow.is_forward()
            && !settings.lifetimes.is_over(key, flow, all.get(&key.opposite(flow)), now)
    };
    Ok(all.iter().filter(is_live).map(|(key, _)| (key.protocol, key.tuple)).collect())
}
