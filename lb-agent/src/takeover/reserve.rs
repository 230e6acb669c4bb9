//! Reserves connections of our flows in netfilter while it serves beside our programs (ADR 0031).
//!
//! netfilter selects a source port for masquerade that no connection it knows uses towards the same backend. It does
//! not see our flows under the tuple that the backend sees. If both selected one port, the backend's answer would go to
//! the client of our flow. So for each of our tuples a conntrack entry is created, which no packet ever meets.
//!
//! Segments of a process of this host pass netfilter before our programs translate them. If rules appear in the middle
//! of a connection, its next segment looks like the first one to them, unless there is an entry for the connection to
//! the frontend.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lb_common::addr::Protocol;
use lb_common::config::Settings;
use lb_common::flow::{Flow, FlowKey, Side, Tuple};

use super::Error;
use crate::netfilter::conntrack::{self, ReservedState};

/// Lifetime of a reservation in seconds. If this process is killed, nothing remains for long.
const LASTS: u32 = 120;
/// Age at which a reservation is renewed.
const RENEWED: Duration = Duration::from_mins(1);

/// A reserved connection: the translated tuple of a flow, or an open TCP connection to a frontend.
type ReservedConnection = (Protocol, Tuple, ReservedState);

/// The reserved connections, with the time of their last renewal. Dropping the value releases them.
#[derive(Debug, Default)]
pub(super) struct Reserved(BTreeMap<ReservedConnection, Instant>);

impl Reserved {
    /// Reserves the connections of these flows, and releases those of flows that are gone.
    ///
    /// `live` are the flows that have not expired, by the tuple that their clients send. If netfilter already has such
    /// a connection, it stays as it is.
    pub(super) fn hold(
        &mut self,
        settings: &Settings,
        flows: &BTreeMap<FlowKey, Flow>,
        live: &BTreeSet<(Protocol, Tuple)>,
    ) -> Result<(), Error> {
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.0);
        let wanted = flows.iter().filter_map(|(key, flow)| to_reserve(settings, key, flow, live));
        for connection in wanted {
            // Two flows may need the same reservation, so it may be among the new ones already.
            let held = before.remove(&connection).or_else(|| self.0.get(&connection).copied());
            // Reservations expire by themselves if this process dies, so they are renewed before.
            let is_fresh = held.is_some_and(|held| now.duration_since(held) < RENEWED);
            let since = if is_fresh { held } else { reserve(&connection, held.is_none(), now)? };
            self.0.extend(since.map(|since| (connection, since)));
        }
        release(&before)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Err(error) = release(&self.0) {
            tracing::debug!(%error, "reservations remain until their timeout");
        }
    }
}

/// Returns the time of the reservation; `None` if netfilter has a connection of its own there.
fn reserve(
    (protocol, tuple, state): &ReservedConnection,
    is_new: bool,
    now: Instant,
) -> Result<Option<Instant>, Error> {
    let reserved = conntrack::reserve(*protocol, tuple, *state, LASTS, is_new);
    let reserved = reserved.map_err(|error| Error::System("make a conntrack entry", error))?;
    Ok(reserved.then_some(now))
}

fn release(all: &BTreeMap<ReservedConnection, Instant>) -> Result<(), Error> {
    all.keys().try_for_each(|(protocol, tuple, _)| {
        let released = conntrack::release(*protocol, tuple);
        released.map_err(|error| Error::System("delete a conntrack entry", error))
    })
}

/// Returns the connection to reserve for an entry of a flow.
///
/// For a reply entry it is the tuple that the backend sees, if its client address belongs to this node. For the forward
/// entry of a process of this host it is the connection to the frontend.
fn to_reserve(
    settings: &Settings,
    key: &FlowKey,
    flow: &Flow,
    live: &BTreeSet<(Protocol, Tuple)>,
) -> Option<ReservedConnection> {
    let FlowKey { protocol, tuple, side, .. } = *key;
    if flow.is_answer() {
        let is_ours = side == Side::INGRESS && settings.node.may_be_own(&tuple.destination);
        return is_ours.then(|| (protocol, tuple.reversed(), ReservedState::Unseen));
    }
    let is_of_host = flow.is_forward() && side == Side::EGRESS && protocol == Protocol::TCP;
    let is_open = is_of_host && live.contains(&(protocol, tuple));
    is_open.then_some((protocol, tuple, ReservedState::Open))
}

#[cfg(test)]
mod tests {
    use lb_common::addr::{Endpoint, Ip, Port};
    use lb_common::flow::Kind;

    use super::*;

    #[test]
    fn sources_of_this_node_and_open_connections_of_its_processes_are_reserved() {
        let end = |last, port| Endpoint::new(Ip::v4([10, 0, 0, last]), Port::new(port));
        let (node, client, frontend, backend) =
            (end(1, 40_000), end(2, 40_001), end(3, 80), end(4, 8_080));
        let mut settings = Settings::default();
        settings.node.own.add(&node.ip);
        let asked = Tuple::new(node, frontend);
        let live = BTreeSet::from([(Protocol::TCP, asked)]);
        let of = |tuple: Tuple, side, kind, flags| {
            let key = FlowKey::new(tuple, Protocol::TCP, side);
            let mut flow = Flow::new(tuple, kind, 0);
            flow.flags = flags;
            to_reserve(&settings, &key, &flow, &live)
        };
        let answer = Tuple::new(backend, node);
        let source = Some((Protocol::TCP, answer.reversed(), ReservedState::Unseen));
        assert_eq!(of(answer, Side::INGRESS, Kind::UNMASQUERADE, Flow::ANSWER), source);
        assert_eq!(of(answer, Side::INGRESS, Kind::REPLY, Flow::ANSWER), source);
        let others = Tuple::new(backend, client);
        assert_eq!(of(others, Side::EGRESS, Kind::REPLY, Flow::ANSWER), None);
        let open = Some((Protocol::TCP, asked, ReservedState::Open));
        assert_eq!(of(asked, Side::EGRESS, Kind::FORWARD, 0), open);
        assert_eq!(of(asked, Side::INGRESS, Kind::FORWARD, 0), None, "another node's");
        let over = Tuple::new(end(1, 40_002), frontend);
        assert_eq!(of(over, Side::EGRESS, Kind::FORWARD, 0), None, "it has ended");
    }
}
