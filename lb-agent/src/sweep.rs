//! Ends flows that are over: by age, by a backend that left, or because their other half is gone. Gives those another source
//! that were masqueraded under an address that is gone.
//!
//! Two walks through the tables of flows: the first notes every half, the second judges each by itself and its
//! twin. What is judged dead is looked at once more right before it goes, since packets do not wait for us.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use lb_common::addr::Protocol;
use lb_common::flow::{Flow, FlowKey, Kind, Side};
use lb_common::service::Frontend;
use tracing::info;

use crate::maps::{Error, Maps};

mod end;
mod lifetime;
mod moved;

pub use lifetime::Lifetimes;
use lifetime::lifetime;
use moved::Own;

/// A half without a twin is given this time (its twin may just be on its way into the table), and so is a flow whose
/// backend left (an answer may be on its way).
const ALONE: Duration = Duration::from_secs(5);

/// What a sweep must know of the services.
#[derive(Debug, Default)]
pub struct Context {
    /// Frontends whose remaining flows shall be reported.
    pub leaving: BTreeSet<Frontend>,
    /// When the sweep began, by the clock of the book.
    pub began: Duration,
    /// Rows of `BACKENDS` that were ever used, at that time.
    pub rows: usize,
    /// How long idle flows are kept.
    pub lifetimes: Lifetimes,
}

/// What a sweep found.
#[derive(Debug, Default)]
pub struct Report {
    /// Halves, and how many there can be, in the table that is fuller: that of IPv4 or that of IPv6 and sockets.
    pub fullest: (usize, u32),
    /// Halves that were removed.
    pub removed: usize,
    /// Masquerades that get another source, since theirs is no address of this node any more.
    pub renewed: usize,
    /// Those of [`Context::leaving`] that flows go to.
    pub live: BTreeSet<Frontend>,
    /// [`Context::began`].
    pub began: Duration,
}

/// What is noted of a half.
#[derive(Clone, Copy, Debug)]
struct Note {
    state: u8,
    seen: u64,
}

/// Notes of the first walk.
#[derive(Default)]
struct Notes {
    hasher: RandomState,
    /// By the key of a half and of the half it names as its twin.
    halves: HashMap<u64, Note>,
    /// Keys of reply halves: what a masquerade hangs on.
    replies: HashSet<u64>,
    /// By backend row.
    epochs: Vec<u32>,
    lifetimes: Lifetimes,
}

/// Sweeps once. `now` is `CLOCK_MONOTONIC`.
pub fn sweep(maps: &Maps, context: &Context, now: Duration) -> Result<Report, Error> {
    let epochs = maps.epochs(context.rows)?;
    let mut notes = Notes { epochs, lifetimes: context.lifetimes, ..Notes::default() };
    let (mut v4, mut v6) = (0, 0);
    maps.flows(|key, flow| {
        *(if key.is_v4() { &mut v4 } else { &mut v6 }) += 1;
        notes.note(key, flow);
    })?;
    let [room4, room6] = maps.flow_capacities()?;
    let fullest = fuller((v4, room4), (v6, room6));
    let mut report = Report { fullest, began: context.began, ..Report::default() };
    let own = Own::read(maps)?;
    let (mut dead, mut lost) = (Vec::new(), Vec::new());
    maps.flows(|key, flow| {
        if notes.is_over(key, flow, now) {
            dead.push(*key);
        } else if own.has_lost(flow) {
            lost.push(*key);
        } else if begins(flow) && !context.leaving.is_empty() {
            report.live.extend(left(&context.leaving, frontend(key)));
        }
    })?;
    for key in &dead {
        report.removed += end::end(maps, key, &mut notes, now)?;
    }
    for key in &lost {
        report.renewed += usize::from(own.renew(maps, key)?);
    }
    if report.renewed > 0 {
        info!(
            flows = report.renewed,
            "flows get another source: theirs is no address of this node any more"
        );
    }
    Ok(report)
}

/// Of two tables, by their entries and what they can hold, the one that is fuller.
const fn fuller(one: (usize, u32), other: (usize, u32)) -> (usize, u32) {
    // Used part by used part, without the division.
    if one.0 as u64 * other.1 as u64 > other.0 as u64 * one.1 as u64 { one } else { other }
}

/// What is leaving of the address that a flow goes to: a `NodePort` is reached by any address of the family.
fn left(leaving: &BTreeSet<Frontend>, to: Frontend) -> impl Iterator<Item = Frontend> {
    let both = [to, Frontend::node_port(to.ip, to.port, to.protocol)];
    both.into_iter().filter(|frontend| leaving.contains(frontend))
}

impl Notes {
    fn note(&mut self, key: &FlowKey, flow: &Flow) {
        let note = Note { state: flow.state, seen: flow.seen };
        let pair = self.hasher.hash_one((key, key.other(flow)));
        let _: Option<Note> = self.halves.insert(pair, note);
        if matches!(flow.kind, Kind::REPLY | Kind::HAIRPIN) {
            let _: bool = self.replies.insert(self.hasher.hash_one(key));
        }
    }

    /// Whether a half is over.
    fn is_over(&self, key: &FlowKey, flow: &Flow, now: Duration) -> bool {
        let age = |seen: u64| now.saturating_sub(Duration::from_nanos(seen));
        if is_masquerade(flow) {
            // It lives as long as the flow it belongs to.
            let reply = self.hasher.hash_one(reply_key(key, flow));
            return !self.replies.contains(&reply) && age(flow.seen) >= ALONE;
        }
        let twin = self.halves.get(&self.hasher.hash_one((key.other(flow), key)));
        let Some(twin) = twin else { return age(flow.seen) >= ALONE };
        // A row, or an epoch of one, that is newer than our look at them is nobody's end.
        let has_moved = |epoch: &u32| epoch.wrapping_sub(flow.epoch).cast_signed() > 0;
        // A flow of service 0 goes straight to a backend that its client named.
        let is_renewed = key.protocol != Protocol::TCP
            && flow.service != 0
            && self.epochs.get(flow.backend as usize).is_some_and(has_moved);
        let (forward, reply) = match flow.kind {
            Kind::REPLY => (twin.state, flow.state),
            _ => (flow.state, twin.state),
        };
        let allowed = lifetime(&self.lifetimes, key.protocol, forward, reply);
        let allowed = if is_renewed { allowed.min(ALONE) } else { allowed };
        age(flow.seen.max(twin.seen)) >= allowed
    }
}

const fn is_masquerade(flow: &Flow) -> bool {
    matches!(flow.kind, Kind::MASQUERADE | Kind::UNMASQUERADE)
}

/// Whether a half is the one that the client's packets meet.
const fn begins(flow: &Flow) -> bool {
    matches!(flow.kind, Kind::FORWARD | Kind::HAIRPIN)
}

/// The key of the reply half that a masquerade belongs to: backend to client, where it leaves.
fn reply_key(key: &FlowKey, flow: &Flow) -> FlowKey {
    let tuple = if flow.kind == Kind::MASQUERADE { key.tuple.reversed() } else { flow.to };
    FlowKey::new(tuple, key.protocol, Side::EGRESS)
}

/// The frontend that a forward half asks for.
const fn frontend(key: &FlowKey) -> Frontend {
    Frontend::new(key.tuple.destination, key.tuple.destination_port, key.protocol)
}

#[cfg(test)]
mod tests;
