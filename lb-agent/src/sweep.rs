//! Removes flows that are over from the tables where nothing displaces them, and expired affinity. Gives flows
//! another source that were masqueraded under an address that is gone.
//!
//! The data path needs none of this: it treats an idle flow as absent, and lets go of closed ones by itself. The
//! sweep keeps room in the tables. It looks at each entry once and remembers only those that may be over.

use std::collections::BTreeSet;
use std::time::Duration;

use lb_common::addr::Protocol;
use lb_common::flow::{Flow, FlowKey, Lifetimes};
use lb_common::service::Frontend;
use tracing::info;

use crate::maps::{Error, Maps, Table};

mod affinity;
mod end;
mod moved;

use moved::Own;

/// Entries that one sweep judges at most; what is left waits for the next one.
const MOST: usize = 65_536;
/// Seconds of silence after which an entry of a masquerade is judged, too.
const MASQUERADE: u32 = 300;

/// The facts about services that a sweep needs.
#[derive(Debug, Default)]
pub struct Context {
    /// Frontends whose remaining flows shall be reported.
    pub leaving: BTreeSet<Frontend>,
    /// When the sweep began, by the clock of the mirror.
    pub began: Duration,
    /// How long idle flows are kept.
    pub lifetimes: Lifetimes,
}

/// The result of a sweep.
#[derive(Debug, Default)]
pub struct Report {
    /// Entries, and how many there can be, in the table of answered flows that is fuller: that of IPv4 or that of IPv6.
    pub fullest: (usize, u32),
    /// Entries of flows that were removed.
    pub removed: usize,
    /// Masquerades that get another source, since theirs is no address of this node any more.
    pub renewed: usize,
    /// Affinity that expired, or whose service is gone, and was removed.
    pub forgotten: usize,
    /// Those of [`Context::leaving`] that flows go to.
    pub live: BTreeSet<Frontend>,
    /// [`Context::began`].
    pub began: Duration,
}

/// Sweeps once. `now` is `CLOCK_MONOTONIC`.
pub fn sweep(maps: &Maps, context: &Context, now: Duration) -> Result<Report, Error> {
    let own = Own::read(maps)?;
    let mut report = Report { began: context.began, ..Report::default() };
    let (mut v4, mut v6) = (0, 0);
    let (mut suspects, mut lost) = (Vec::new(), Vec::new());
    let flows = maps.flows();
    flows.walk(Table::Protected, |key, flow| {
        *(if key.is_v4() { &mut v4 } else { &mut v6 }) += 1;
        if suspects.len() < MOST && is_suspect(&context.lifetimes, key, flow, now) {
            suspects.push(*key);
        }
        see(context, &own, (key, flow), &mut lost, &mut report.live);
    })?;
    flows.walk(Table::Transient, |key, flow| {
        // Nobody removes what is over there.
        if !is_suspect(&context.lifetimes, key, flow, now) {
            see(context, &own, (key, flow), &mut lost, &mut report.live);
        }
    })?;
    let [room4, room6] = flows.capacities()?;
    report.fullest = fuller((v4, room4), (v6, room6));
    for key in &suspects {
        report.removed += end::end(&flows, key, &context.lifetimes, now)?;
    }
    for key in &lost {
        report.renewed += usize::from(own.renew(&flows, key)?);
    }
    if report.renewed > 0 {
        info!(
            flows = report.renewed,
            "masqueraded flows get a new source address: theirs is no longer an address of this \
             node"
        );
    }
    report.forgotten = affinity::sweep(maps, now)?;
    Ok(report)
}

/// Notes of an entry what its flow goes to, and whether its source is gone.
fn see(
    context: &Context,
    own: &Own,
    (key, flow): (&FlowKey, &Flow),
    lost: &mut Vec<FlowKey>,
    live: &mut BTreeSet<Frontend>,
) {
    if own.has_lost(flow) {
        lost.push(*key);
    } else if flow.is_forward() && !context.leaving.is_empty() {
        live.extend(left(&context.leaving, frontend(key)));
    }
}

/// Whether the flow of an entry may be over: it has been silent for so long that the other direction must be asked.
fn is_suspect(lifetimes: &Lifetimes, key: &FlowKey, flow: &Flow, now: Duration) -> bool {
    let least = lifetimes.least(key.protocol, flow);
    let least = if flow.is_masquerade() { least.max(MASQUERADE) } else { least };
    now.saturating_sub(Duration::from_nanos(flow.seen)) >= Duration::from_secs(least.into())
}

/// Returns the fuller one of two tables, each given by its entries and its capacity.
const fn fuller(one: (usize, u32), other: (usize, u32)) -> (usize, u32) {
    // Used part by used part, without the division.
    if one.0 as u64 * other.1 as u64 > other.0 as u64 * one.1 as u64 { one } else { other }
}

/// The leaving frontends of the address that a flow goes to: a `NodePort` is reached by any address of the family.
fn left(leaving: &BTreeSet<Frontend>, to: Frontend) -> impl Iterator<Item = Frontend> {
    let both = [to, Frontend::node_port(to.ip, to.port, to.protocol)];
    // Datagrams look their frontend up again when it goes.
    let is_kept = to.protocol == Protocol::TCP;
    both.into_iter().filter(move |frontend| is_kept && leaving.contains(frontend))
}

/// The frontend that a forward entry asks for.
const fn frontend(key: &FlowKey) -> Frontend {
    Frontend::new(key.tuple.destination, key.tuple.destination_port, key.protocol)
}

#[cfg(test)]
mod tests;
