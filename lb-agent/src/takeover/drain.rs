//! The way back to kube-proxy: no new flow begins, and known flows continue until they end.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lb_common::config::{NodeSettings, Settings};
use lb_common::flow::{Flow, FlowKey, Lifetimes};

use super::reserve::Reserved;
use super::verb::Error;
use super::{Rules, Tuples};
use crate::datapath::{self, open_here};
use crate::maps::Maps;
use crate::reconcile::Op;
use crate::syscall::monotonic;

/// Intervals between checks: while flows end, and while rules are awaited.
const AGAIN: Duration = Duration::from_secs(1);
const OFTEN: Duration = Duration::from_millis(50);
/// How long before its end a flow gives its conntrack entry up, at most: no round may come too late for the next socket
/// with its port.
const AHEAD: Duration = Duration::from_secs(2);

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
    let mut reserved = Reserved::default();
    if options.after_rules {
        await_rules(dir, options.within, &maps, &mut reserved, out)?;
    }
    // Connections are reserved before the switch, because netfilter serves new connections at once, and again below,
    // for flows that began in between.
    let _flows: Flows = hold(&mut reserved, &maps)?;
    // The reservations may have taken seconds. An agent that starts now finds these settings, and replaces them.
    datapath::without_agent(dir, || switch(&mut maps))??;
    super::forget_ended(&maps)?;
    // Without an agent, no Service changes.
    let frontends = super::MapFrontends::of(&maps)?;
    let (began, mut reported) = (Instant::now(), None);
    loop {
        let flows = hold(&mut reserved, &maps)?;
        // Each round does this: once a flow has ended, the next socket with its port must begin by kube-proxy's rules.
        frontends.forget_untranslated(&flows.lasting)?;
        let left = flows.live.len();
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

/// Lets packets without a flow pass from now on.
fn switch(maps: &mut Maps) -> Result<(), super::Error> {
    let settings = maps.settings().map_err(super::Error::Maps)?;
    let flags = settings.node.flags & !Settings::TAKE_OVER | Settings::DRAIN;
    let node = NodeSettings { flags, ..settings.node };
    let drained = Settings { node, ..settings };
    maps.apply(&Op::PutSettings(Box::new(drained))).map_err(super::Error::Maps)
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
    let _flows: Flows = hold(reserved, maps)?;
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
        // Flows begin meanwhile, and reservations expire (`LASTS`).
        let _flows: Flows = hold(reserved, maps)?;
    }
    Ok(())
}

/// The flows that have not expired, by the tuples of their clients' packets.
struct Flows {
    live: Tuples,
    /// Those of them that last for [`ahead`] even without a packet.
    lasting: Tuples,
}

/// Reserves the connections of all flows in netfilter, and returns the flows that have not expired.
fn hold(reserved: &mut Reserved, maps: &Maps) -> Result<Flows, Error> {
    let settings = maps.settings().map_err(super::Error::Maps)?;
    let all = maps.flows().all().map_err(super::Error::Maps)?;
    let all: BTreeMap<FlowKey, Flow> = all.into_iter().collect();
    let now = monotonic();
    let live = live_at(now, &settings, &all);
    reserved.hold(&settings, &all, &live)?;
    Ok(Flows { live, lasting: live_at(now + ahead(&settings.node.lifetimes), &settings, &all) })
}

/// Returns [`AHEAD`], or half of the shortest life of a flow of datagrams: an active flow must not give its entry up.
fn ahead(lifetimes: &Lifetimes) -> Duration {
    let least = lifetimes.unreplied.min(lifetimes.stream).min(lifetimes.sctp);
    AHEAD.min(Duration::from_secs(least.into()) / 2)
}

/// Returns the flows that have not expired at a time. Without an agent no sweep removes expired entries.
fn live_at(time: Duration, settings: &Settings, all: &BTreeMap<FlowKey, Flow>) -> Tuples {
    let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let is_live = |(key, flow): &(&FlowKey, &Flow)| {
        let opposite = key.opposite(flow);
        let reply = all.get(&opposite).filter(|reply| key.has_opposite(&opposite, reply));
        flow.is_forward() && !settings.node.lifetimes.is_over(key, flow, reply, time)
    };
    all.iter().filter(is_live).map(|(key, _)| (key.protocol, key.tuple)).collect()
}

#[cfg(test)]
mod tests {
    use lb_common::addr::Protocol;
    use lb_common::fake::at;
    use lb_common::flow::{Kind, Side, Tuple};

    use super::*;

    #[test]
    fn flow_gives_its_entry_up_before_it_ends() {
        let settings = Settings::default();
        let idle = u64::from(settings.node.lifetimes.unreplied) - 1;
        let tuple = Tuple::new(at("10.0.0.1:40000"), at("10.96.0.10:53"));
        let key = FlowKey::new(tuple, Protocol::UDP, Side::EGRESS);
        let to = Tuple::new(at("10.0.0.1:40000"), at("10.0.1.7:53"));
        let all = BTreeMap::from([(key, Flow::new(to, Kind::FORWARD, 0))]);
        let now = Duration::from_secs(idle);
        assert_eq!(live_at(now, &settings, &all), Tuples::from([(Protocol::UDP, tuple)]));
        assert_eq!(live_at(now + AHEAD, &settings, &all), Tuples::new());
        let short = Lifetimes { stream: 1, ..Lifetimes::default() };
        assert_eq!([ahead(&short), ahead(&Lifetimes::default())], [AHEAD / 4, AHEAD]);
    }
}
