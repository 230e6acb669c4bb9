//! Ends flows that are over: by age, by a backend that left, or because their other half is gone.
//!
//! Two walks through `FLOWS`: the first notes every half, the second judges each by itself and its
//! twin. What is judged dead is looked at once more before it goes, since packets do not wait for us.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use lb_common::addr::Protocol;
use lb_common::flow::{Flow, FlowKey, Kind, Side};
use lb_common::service::{Frontend, ServiceId};

use crate::maps::{Error, Maps};

mod lifetime;

pub use lifetime::Lifetimes;
use lifetime::lifetime;

/// A half without a twin is given this time (its twin may just be on its way into the table), and so is a flow whose
/// backend left (an answer may be on its way).
const ALONE: Duration = Duration::from_secs(5);

/// What a sweep must know of the services.
#[derive(Debug, Default)]
pub struct Context {
    /// Services whose remaining flows shall be reported.
    pub leaving: BTreeSet<ServiceId>,
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
    /// Halves in the table.
    pub halves: usize,
    /// Halves that were removed.
    pub removed: usize,
    /// Frontends that flows of leaving services go to.
    pub live: BTreeSet<(ServiceId, Frontend)>,
    /// Halves the table can hold.
    pub capacity: u32,
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
    maps.flows(|key, flow| notes.note(key, flow))?;
    let mut report = Report {
        halves: notes.halves.len(),
        capacity: maps.flow_capacity()?,
        began: context.began,
        ..Report::default()
    };
    let mut dead = Vec::new();
    maps.flows(|key, flow| {
        if notes.is_over(key, flow, now) {
            dead.push(*key);
        } else if begins(flow) && context.leaving.contains(&flow.service) {
            let _: bool = report.live.insert((flow.service, frontend(key)));
        }
    })?;
    let mut removed = Vec::new();
    for key in &dead {
        removed.extend(confirm(maps, key, &mut notes, now)?);
    }
    maps.remove_flows(&removed)?;
    report.removed = removed.len();
    Ok(report)
}

/// Looks again at a half judged dead, and gives the keys that go with it.
fn confirm(
    maps: &Maps,
    key: &FlowKey,
    first: &mut Notes,
    now: Duration,
) -> Result<Vec<FlowKey>, Error> {
    let Some(flow) = maps.flow(key)? else { return Ok(Vec::new()) };
    let twin_key = key.other(&flow);
    let twin = maps.flow(&twin_key)?;
    let epochs = std::mem::take(&mut first.epochs);
    let mut notes = Notes { epochs, lifetimes: first.lifetimes, ..Notes::default() };
    notes.note(key, &flow);
    if let Some(twin) = &twin {
        notes.note(&twin_key, twin);
    }
    if is_masquerade(&flow) {
        let reply = reply_key(key, &flow);
        if let Some(flow) = maps.flow(&reply)? {
            notes.note(&reply, &flow);
        }
    }
    let is_over = notes.is_over(key, &flow, now);
    first.epochs = notes.epochs;
    if !is_over {
        return Ok(Vec::new());
    }
    let is_mutual = twin.is_some_and(|twin| twin_key.other(&twin) == *key);
    Ok([*key].into_iter().chain(is_mutual.then_some(twin_key)).collect())
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
mod tests {
    use super::*;
    use lb_common::addr::{Endpoint, Ip, Port};
    use lb_common::flow::{Tuple, state};

    const NOW: Duration = Duration::from_secs(1_000_000);

    fn at(host: u8, port: u16) -> Endpoint {
        Endpoint::new(Ip::v4([10, 0, 0, host]), Port::new(port))
    }

    fn half(kind: Kind, to: Tuple, idle: u64, state: u8) -> Flow {
        let seen = NOW.saturating_sub(Duration::from_secs(idle)).as_nanos() as u64;
        let mut flow = Flow::new(to, kind, seen);
        (flow.state, flow.service, flow.backend, flow.epoch) = (state, 1, 1, 1);
        flow
    }

    /// Both halves of a flow of client 1 to frontend 2 and backend 3, idle for so many seconds.
    fn pair(protocol: Protocol, idle: u64, states: [u8; 2]) -> Vec<(FlowKey, Flow)> {
        let (client, frontend, backend) = (at(1, 1000), at(2, 80), at(3, 8080));
        let to = Tuple::new(client, backend);
        let key = FlowKey::new(Tuple::new(client, frontend), protocol, Side::INGRESS);
        let forward = half(Kind::FORWARD, to, idle, states[0]);
        let reply = half(Kind::REPLY, key.tuple.reversed(), idle + 50, states[1]);
        vec![(key, forward), (key.other(&forward), reply)]
    }

    /// The masquerade pair of it.
    fn masquerade(idle: u64) -> Vec<(FlowKey, Flow)> {
        let (client, backend, ours) = (at(1, 1000), at(3, 8080), at(9, 2000));
        let key = FlowKey::new(Tuple::new(client, backend), Protocol::TCP, Side::EGRESS);
        let flow = half(Kind::MASQUERADE, Tuple::new(ours, backend), idle, 0);
        let back = half(Kind::UNMASQUERADE, key.tuple.reversed(), idle, 0);
        vec![(key, flow), (key.other(&flow), back)]
    }

    fn over(halves: &[(FlowKey, Flow)]) -> Vec<bool> {
        let mut notes = Notes { epochs: vec![0, 1], ..Notes::default() };
        for (key, flow) in halves {
            notes.note(key, flow);
        }
        halves.iter().map(|(key, flow)| notes.is_over(key, flow, NOW)).collect()
    }

    #[test]
    fn a_pair_lives_as_long_as_either_half_is_seen() {
        let both = [state::ESTABLISHED; 2];
        assert_eq!(over(&pair(Protocol::UDP, 119, both)), [false, false]);
        assert_eq!(over(&pair(Protocol::UDP, 120, both)), [true, true]);
        assert_eq!(over(&pair(Protocol::UDP, 30, [1, 0])), [true, true], "never answered");
        assert_eq!(over(&pair(Protocol::TCP, 3_600, both)), [false, false]);
        assert_eq!(over(&pair(Protocol::TCP, 10, [1, 1 | state::RST])), [true, true]);
    }

    #[test]
    fn a_half_alone_is_over_soon() {
        let halves = pair(Protocol::TCP, 6, [1, 1]);
        assert_eq!(over(&halves[..1]), [true]);
        assert_eq!(over(&pair(Protocol::TCP, 4, [1, 1])[..1]), [false], "its twin may be coming");
    }

    #[test]
    fn a_half_whose_twin_belongs_to_another_is_alone() {
        let mut halves = pair(Protocol::TCP, 20, [1, 1]);
        halves[1].1.to.destination_port = Port::new(1001);
        assert_eq!(over(&halves), [true, true]);
    }

    #[test]
    fn a_masquerade_lives_as_long_as_its_flow() {
        let flow = pair(Protocol::TCP, 100, [1, 1]);
        let all = [flow, masquerade(100)].concat();
        assert_eq!(over(&all), [false; 4]);
        assert_eq!(over(&masquerade(100)), [true, true]);
    }

    #[test]
    fn quiet_datagram_flows_of_a_backend_that_left_are_over() {
        for (seconds, expected) in [(1, false), (5, true)] {
            let mut flow = pair(Protocol::UDP, seconds, [1, 1]);
            for (_, half) in &mut flow {
                half.epoch = 0;
            }
            assert_eq!(over(&flow), [expected; 2], "quiet for {seconds} s");
        }
        let mut flow = pair(Protocol::UDP, 5, [1, 1]);
        for (_, half) in &mut flow {
            (half.service, half.backend, half.epoch) = (0, 0, 0);
        }
        assert_eq!(over(&flow), [false, false], "of no service");
        let mut flow = pair(Protocol::TCP, 1, [1, 1]);
        for (_, half) in &mut flow {
            half.epoch = 0;
        }
        assert_eq!(over(&flow), [false, false], "TCP goes on");
        let mut flow = pair(Protocol::UDP, 5, [1, 1]);
        for (_, half) in &mut flow {
            half.epoch = 2;
        }
        assert_eq!(over(&flow), [false, false], "begun after the rows were read");
    }
}
