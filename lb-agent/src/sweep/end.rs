//! Ends one expired flow, while packets may renew it.
//!
//! An entry is read once more right before it is removed. A later packet begins the flow again in the tables of
//! transient entries, where this module removes only what no packet has renewed since: the copy that the entry left
//! there when it became protected. That copy has the flags of the handshake, so it would count as an open connection.

use std::time::Duration;

use lb_common::addr::Ip;
use lb_common::flow::{Flow, FlowKey, Kind, Lifetimes, Side};

use crate::maps::{Error, FlowMaps};

/// The operations on flow entries that ending a flow needs; a test has its own.
pub(super) trait Entries {
    /// Returns an entry as packets find it.
    fn entry(&self, key: &FlowKey) -> Result<Option<Flow>, Error>;
    /// Removes a protected entry, if it exists, and returns its value at that moment.
    fn take(&self, key: &FlowKey) -> Result<Option<Flow>, Error>;
    /// Removes the transient copy of an entry that was protected, unless a packet has renewed it since `seen`.
    fn take_copy(&self, key: &FlowKey, seen: u64) -> Result<(), Error>;
    /// Restores an entry, unless it was recreated.
    fn restore(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error>;
    /// Overwrites an entry, if it exists.
    fn replace(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error>;
}

impl Entries for FlowMaps<'_> {
    fn entry(&self, key: &FlowKey) -> Result<Option<Flow>, Error> {
        self.get(key)
    }

    fn take(&self, key: &FlowKey) -> Result<Option<Flow>, Error> {
        Self::take(self, key)
    }

    fn take_copy(&self, key: &FlowKey, seen: u64) -> Result<(), Error> {
        Self::take_copy(self, key, seen)
    }

    fn restore(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error> {
        Self::restore(self, key, flow)
    }

    fn replace(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error> {
        Self::replace(self, key, flow)
    }
}

/// Removes the protected entries of the flow that an entry belongs to, if the flow has expired. Returns how many.
pub(super) fn end<E: Entries>(
    entries: &E,
    key: &FlowKey,
    lifetimes: &Lifetimes,
    now: Duration,
) -> Result<usize, Error> {
    let Some(flow) = entries.entry(key)? else { return Ok(0) };
    if flow.is_masquerade() {
        return end_masquerade(entries, key, &flow);
    }
    let opposite_key = key.opposite(&flow);
    let opposite = opposite(entries, key, &opposite_key)?;
    if !lifetimes.is_over(key, &flow, opposite.as_ref(), now.as_nanos() as u64) {
        return Ok(0);
    }
    // The masquerade entry is read now, together with the other two: if a packet uses it after that, it stays.
    let masquerade = if flow.flags & Flow::MASQUERADED == 0 {
        None
    } else {
        let tuple = if flow.is_answer() { key.tuple.reversed() } else { flow.to };
        let masquerade = FlowKey::new(tuple, key.protocol, Side::EGRESS);
        entries.entry(&masquerade)?.map(|flow| (masquerade, flow))
    };
    let entry = (*key, flow);
    // The forward entry is removed first: a request that found it without its reply entry would get an answer that is
    // not translated back.
    let (first, second) = match opposite.map(|opposite| (opposite_key, opposite)) {
        Some(forward) if flow.is_answer() => (forward, Some(entry)),
        opposite => (entry, opposite),
    };
    let mut removed = 0;
    if let Some(taken) = entries.take(&first.0)? {
        // A packet in this direction arrived meanwhile: the next sweep checks the flow again.
        if taken != first.1 {
            entries.restore(&first.0, &taken)?;
            return Ok(0);
        }
        entries.take_copy(&first.0, taken.seen)?;
        removed = 1;
    } else if !flow.is_answer() {
        // The entry itself is gone, so something else has ended the flow. The forward entry of a reply may be missing
        // for another reason: it may exist in the transient table alone.
        return Ok(0);
    }
    if let Some((key, judged)) = &second {
        match remove(entries, key, judged)? {
            Removal::Renewed => return Ok(removed),
            Removal::Absent => {}
            Removal::Done => removed += 1,
        }
    }
    if let Some((key, judged)) = &masquerade {
        removed += take_masquerade(entries, key, judged)?;
    }
    Ok(removed)
}

/// Returns the entry of the other direction.
fn opposite<E: Entries>(
    entries: &E,
    key: &FlowKey,
    opposite: &FlowKey,
) -> Result<Option<Flow>, Error> {
    Ok(entries.entry(opposite)?.filter(|flow| key.has_opposite(opposite, flow)))
}

/// Reports whether the flow of an entry has expired, by the entries of both directions.
pub(super) fn is_over<E: Entries>(
    entries: &E,
    key: &FlowKey,
    flow: &Flow,
    lifetimes: &Lifetimes,
    now: Duration,
) -> Result<bool, Error> {
    let opposite = opposite(entries, key, &key.opposite(flow))?;
    Ok(lifetimes.is_over(key, flow, opposite.as_ref(), now.as_nanos() as u64))
}

/// Ends a masquerade entry: it lives as long as the flow that it belongs to.
fn end_masquerade<E: Entries>(entries: &E, key: &FlowKey, flow: &Flow) -> Result<usize, Error> {
    let is_masquerade = flow.kind == Kind::MASQUERADE;
    let reply = if is_masquerade { key.tuple.reversed() } else { flow.to };
    let reply = FlowKey::new(reply, key.protocol, Side::EGRESS);
    // Only the existence of the reply counts: the flow's entries are judged on their own.
    if entries.entry(&reply)?.is_some() {
        return Ok(0);
    }
    if is_masquerade {
        return take_masquerade(entries, key, flow);
    }
    Ok(remove(entries, key, flow)?.count())
}

/// Removes a masquerade entry and the entry of its answers, unless that belongs to another flow by now.
fn take_masquerade<E: Entries>(
    entries: &E,
    masquerade: &FlowKey,
    judged: &Flow,
) -> Result<usize, Error> {
    if remove(entries, masquerade, judged)? != Removal::Done {
        return Ok(0);
    }
    if judged.to.source == Ip::UNSPECIFIED {
        return Ok(1);
    }
    let key = masquerade.opposite(judged);
    // The tuple may have been given to another flow since.
    let answers = entries.entry(&key)?.filter(|it| it.to.is_reverse_of(&masquerade.tuple));
    let Some(answers) = answers else { return Ok(1) };
    Ok(1 + remove(entries, &key, &answers)?.count())
}

/// Removes a protected entry and its older copy. An entry that a packet has changed since it was judged stays, and so
/// does an entry in the transient table that a packet began behind it.
fn remove<E: Entries>(entries: &E, key: &FlowKey, judged: &Flow) -> Result<Removal, Error> {
    let Some(taken) = entries.take(key)? else { return Ok(Removal::Absent) };
    if taken != *judged {
        entries.restore(key, &taken)?;
        return Ok(Removal::Renewed);
    }
    entries.take_copy(key, judged.seen)?;
    Ok(Removal::Done)
}

/// The result for a protected entry that was to be removed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removal {
    Done,
    /// It does not exist; a transient one may.
    Absent,
    /// A packet has changed it: it stays.
    Renewed,
}

impl Removal {
    /// The number of entries that were removed.
    const fn count(self) -> usize {
        match self {
            Self::Done => 1,
            Self::Absent | Self::Renewed => 0,
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
