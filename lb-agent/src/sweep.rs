//! Removes expired flows from the tables where nothing displaces them, and expired affinity. Flows that are masqueraded
//! with an address that is gone get another source.
//!
//! The data path works without this: it treats an idle flow as absent, and moves closed ones to the transient tables,
//! where newer entries displace them. A sweep makes room in the tables. It reads each entry once and remembers only
//! those that may have expired.

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

pub use moved::OwnAddresses;

/// Most entries that a sweep checks for expiry; the others wait for the next sweep ([`Suspects`]).
const MOST: usize = 65_536;
/// Seconds without a packet after which a masquerade entry is checked as well.
const MASQUERADE: u32 = 300;

/// The facts about services that a sweep needs.
#[derive(Debug, Default)]
pub struct Context {
    /// Draining frontends; the sweep reports those with flows.
    pub draining: BTreeSet<Frontend>,
    /// Time when the sweep began, by the grace clock.
    pub began: Duration,
    /// Idle timeouts of flows.
    pub lifetimes: Lifetimes,
    pub own: OwnAddresses,
    /// [`Report::next`] of the last sweep.
    pub skip: usize,
}

/// The result of a sweep.
#[derive(Debug, Default)]
pub struct Report {
    /// Entries and capacity of the fuller table of protected flows, IPv4 or IPv6.
    pub fullest: (usize, u32),
    /// Number of flow entries that were removed.
    pub removed: usize,
    /// Number of masquerades that get another source, because no answer to theirs can arrive.
    pub renewed: usize,
    /// Number of affinity entries that were removed: expired, or of a service without affinity.
    pub forgotten: usize,
    /// The frontends of [`Context::draining`] that have flows.
    pub live: BTreeSet<Frontend>,
    /// The same as [`Context::began`].
    pub began: Duration,
    /// The number of entries that may have expired and that the next sweep skips, because this one has checked them.
    pub next: usize,
}

/// The entries of one walk that are checked: at most [`MOST`] of those that may have expired.
///
/// Many of them are alive after all, such as connections idle for an hour. Without the number to skip they would hide
/// the expired entries behind them from every sweep. The kernel walks a table in the same order each time.
#[derive(Debug, Default)]
struct Suspects {
    skip: usize,
    seen: usize,
    keys: Vec<FlowKey>,
}

impl Suspects {
    fn add(&mut self, key: &FlowKey) {
        if self.seen >= self.skip && self.keys.len() < MOST {
            self.keys.push(*key);
        }
        self.seen += 1;
    }

    /// Returns the number to skip in the next walk, after `removed` entries were removed.
    const fn next(&self, removed: usize) -> usize {
        let end = self.skip + self.keys.len();
        if end >= self.seen { 0 } else { end.saturating_sub(removed) }
    }
}

/// Runs one sweep. `now` is the time of `CLOCK_MONOTONIC`, as the data path stamps flows.
pub fn sweep(maps: &Maps, context: &Context, now: Duration) -> Result<Report, Error> {
    let mut report = Report { began: context.began, ..Report::default() };
    let (mut v4, mut v6) = (0, 0);
    let (mut suspects, mut lost) =
        (Suspects { skip: context.skip, ..Suspects::default() }, Vec::new());
    let flows = maps.flows();
    flows.walk(Table::Protected, |key, flow| {
        *(if key.is_v4() { &mut v4 } else { &mut v6 }) += 1;
        if is_suspect(&context.lifetimes, key, flow, now) {
            suspects.add(key);
        }
        see(context, key, flow, &mut lost, &mut report.live);
    })?;
    let mut doubtful = Vec::new();
    flows.walk(Table::Transient, |key, flow| {
        if !is_suspect(&context.lifetimes, key, flow, now) {
            see(context, key, flow, &mut lost, &mut report.live);
        } else if flow.is_forward() && !missing(context, key, &report.live).is_empty() {
            doubtful.push((*key, *flow));
        }
    })?;
    // Expired transient entries stay in the table until they are displaced, so they must not count as live. But an open
    // connection may be transient, too, where the table of protected flows is full.
    for (key, flow) in &doubtful {
        let missing = missing(context, key, &report.live);
        if !missing.is_empty() && !end::is_over(&flows, key, flow, &context.lifetimes, now)? {
            report.live.extend(missing);
        }
    }
    let [room4, room6] = flows.capacities()?;
    report.fullest = fuller((v4, room4), (v6, room6));
    // Entries are removed after the walk, which reads the table in batches. Each entry is judged again before it is
    // removed.
    for key in &suspects.keys {
        report.removed += end::end(&flows, key, &context.lifetimes, now)?;
    }
    report.next = suspects.next(report.removed);
    for key in &lost {
        report.renewed += usize::from(context.own.renew(&flows, key)?);
    }
    if report.renewed > 0 {
        info!(flows = report.renewed, "source address of flows is gone: they get a new one");
    }
    report.forgotten = affinity::sweep(maps, now)?;
    Ok(report)
}

/// Returns the draining frontends of a forward entry for which no flow was found yet.
fn missing(context: &Context, key: &FlowKey, live: &BTreeSet<Frontend>) -> Vec<Frontend> {
    let draining = draining_of(&context.draining, frontend(key));
    draining.filter(|frontend| !live.contains(frontend)).collect()
}

/// Records the draining frontend of an entry, or that its masquerade source is gone.
fn see(
    context: &Context,
    key: &FlowKey,
    flow: &Flow,
    lost: &mut Vec<FlowKey>,
    live: &mut BTreeSet<Frontend>,
) {
    if context.own.has_lost(key, flow) {
        lost.push(*key);
    // Usually nothing drains; then the walk compares no frontends.
    } else if flow.is_forward() && !context.draining.is_empty() {
        live.extend(draining_of(&context.draining, frontend(key)));
    }
}

/// Reports whether the flow of an entry may have expired. After so long without a packet, the opposite entry decides.
fn is_suspect(lifetimes: &Lifetimes, key: &FlowKey, flow: &Flow, now: Duration) -> bool {
    let least = lifetimes.least(key.protocol, flow);
    // A masquerade entry lives as long as its reply (`end_masquerade`), so its own age only limits how often that is
    // looked up.
    let least = if flow.is_masquerade() { least.max(MASQUERADE) } else { least };
    now.saturating_sub(Duration::from_nanos(flow.seen)) >= Duration::from_secs(least.into())
}

/// Returns the fuller one of two tables, each given by its entries and its capacity.
const fn fuller(one: (usize, u32), other: (usize, u32)) -> (usize, u32) {
    // Compares the fill levels by cross-multiplication, which needs no division.
    if one.0 as u64 * other.1 as u64 > other.0 as u64 * one.1 as u64 { one } else { other }
}

/// Returns the draining frontends that a flow may use: that of its address, and the `NodePort` of any address.
fn draining_of(draining: &BTreeSet<Frontend>, to: Frontend) -> impl Iterator<Item = Frontend> {
    let both = [to, Frontend::node_port(to.ip, to.port, to.protocol)];
    // Datagrams look up their frontend again when it is removed.
    let is_kept = to.protocol != Protocol::UDP;
    both.into_iter().filter(move |frontend| is_kept && draining.contains(frontend))
}

/// Returns the frontend of a forward entry.
const fn frontend(key: &FlowKey) -> Frontend {
    Frontend::new(key.tuple.destination, key.tuple.destination_port, key.protocol)
}

#[cfg(test)]
mod tests;
