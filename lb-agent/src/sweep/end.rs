//! Ends one flow that was judged dead, while packets may renew it.
//!
//! A packet touches a half that it finds, and begins the flow anew where its first half is gone: the answer's half first,
//! its own last (`lb_common::forward`). So of a pair the half that its first packet meets goes first, the other one only if
//! no packet has written it since it was judged. What a packet wrote is put back: the next sweep judges it.

use std::time::Duration;

use lb_common::flow::{Flow, FlowKey, Kind};

use super::{Notes, is_masquerade, reply_key};
use crate::maps::{Error, Maps};

/// Where halves are.
pub(super) trait Halves {
    /// One half, if it is there.
    fn half(&self, key: &FlowKey) -> Result<Option<Flow>, Error>;
    /// Removes one half, if it is there, and gives what it was at that moment.
    fn take(&self, key: &FlowKey) -> Result<Option<Flow>, Error>;
    /// Puts one back, unless it was made anew.
    fn restore(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error>;
    /// Writes over one, if it is there.
    fn replace(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error>;
}

impl Halves for Maps {
    fn half(&self, key: &FlowKey) -> Result<Option<Flow>, Error> {
        self.flow(key)
    }

    fn take(&self, key: &FlowKey) -> Result<Option<Flow>, Error> {
        self.take_flow(key)
    }

    fn restore(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error> {
        self.restore_flow(key, flow)
    }

    fn replace(&self, key: &FlowKey, flow: &Flow) -> Result<(), Error> {
        self.replace_flow(key, flow)
    }
}

/// Looks again at a half judged dead and removes it, with its twin, if it still is. Says how many halves went.
pub(super) fn end<H: Halves>(
    halves: &H,
    key: &FlowKey,
    first: &mut Notes,
    now: Duration,
) -> Result<usize, Error> {
    let Some(flow) = halves.half(key)? else { return Ok(0) };
    let twin_key = key.other(&flow);
    let twin = halves.half(&twin_key)?;
    let epochs = std::mem::take(&mut first.epochs);
    let mut notes = Notes { epochs, lifetimes: first.lifetimes, ..Notes::default() };
    notes.note(key, &flow);
    if let Some(twin) = &twin {
        notes.note(&twin_key, twin);
    }
    if is_masquerade(&flow) {
        let reply = reply_key(key, &flow);
        if let Some(flow) = halves.half(&reply)? {
            notes.note(&reply, &flow);
        }
    }
    let is_over = notes.is_over(key, &flow, now);
    first.epochs = notes.epochs;
    if !is_over {
        return Ok(0);
    }
    let itself = (*key, flow);
    let Some(twin) = twin.filter(|twin| twin_key.other(twin) == *key) else {
        return Ok(usize::from(remove(halves, &itself)?));
    };
    let twin = (twin_key, twin);
    match flow.kind {
        Kind::REPLY | Kind::UNMASQUERADE => remove_pair(halves, &twin, &itself),
        _ => remove_pair(halves, &itself, &twin),
    }
}

/// Removes both halves as they were judged: `front`, which the first packet of a flow meets, and `back`.
fn remove_pair<H: Halves>(
    halves: &H,
    front: &(FlowKey, Flow),
    back: &(FlowKey, Flow),
) -> Result<usize, Error> {
    if !remove(halves, front)? {
        return Ok(0);
    }
    // Looked at first: so the time in which a half that was renewed is missing begins only where that comes between two
    // calls of ours.
    match halves.half(&back.0)? {
        None => return Ok(1),
        Some(flow) if flow == back.1 && remove(halves, back)? => return Ok(2),
        Some(_) => {}
    }
    // An answer came, or the flow began anew: then its first half is there already, and stays.
    halves.restore(&front.0, &front.1)?;
    Ok(0)
}

/// Removes a half if it is as it was judged. False where it is not: then it stands again.
fn remove<H: Halves>(halves: &H, (key, judged): &(FlowKey, Flow)) -> Result<bool, Error> {
    let Some(taken) = halves.take(key)? else { return Ok(false) };
    if taken == *judged {
        return Ok(true);
    }
    halves.restore(key, &taken)?;
    Ok(false)
}

#[cfg(test)]
mod tests;
