//! Flows of ours that netfilter must know of while it serves beside our programs (ADR 0031).
//!
//! Netfilter draws the source port of what it masquerades among those that no connection it
//! knows has towards the same backend. It sees none of ours under the tuple that the backend
//! sees: an answer to a port that both have given away goes to the client of our flow. So a
//! connection with that tuple is written down in conntrack, which no packet ever meets.
//!
//! Segments of a process of this host pass netfilter before our programs translate them. To rules that come in the
//! middle of a connection its next segment looks like the first, unless a connection to the frontend is written down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lb_common::addr::Protocol;
use lb_common::config::Settings;
use lb_common::flow::{Flow, FlowKey, Side, Tuple};

use super::Error;
use crate::netfilter::conntrack::{self, State};

/// Seconds after which netfilter forgets a reservation by itself: should we be killed, nothing is left for long.
const LASTS: u32 = 120;
/// How old one may become before it is renewed.
const RENEWED: Duration = Duration::from_mins(1);

/// A connection as it is written down: what it is translated to, or an open one of TCP to a frontend.
type Written = (Protocol, Tuple, State);

/// The connections that are written down, with the time of the last renewal. They end with this value.
#[derive(Debug, Default)]
pub(super) struct Reserved(BTreeMap<Written, Instant>);

impl Reserved {
    /// Writes down what netfilter must know of these flows, and takes back what was for flows that are gone. `known`:
    /// flows that are not over, by what their clients send.
    ///
    /// Where netfilter has such a connection already, it stays as it is.
    pub(super) fn hold(
        &mut self,
        settings: &Settings,
        flows: &BTreeMap<FlowKey, Flow>,
        known: &BTreeSet<(Protocol, Tuple)>,
    ) -> Result<(), Error> {
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.0);
        for written in flows.iter().filter_map(|(key, flow)| written(settings, key, flow, known)) {
            let held = before.remove(&written).or_else(|| self.0.get(&written).copied());
            let is_fresh = held.is_some_and(|held| now.duration_since(held) < RENEWED);
            let since = if is_fresh { held } else { reserve(&written, held.is_none(), now)? };
            self.0.extend(since.map(|since| (written, since)));
        }
        release(&before)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Err(error) = release(&self.0) {
            tracing::debug!(%error, "reservations end by themselves");
        }
    }
}

/// Returns since when it is in place; nothing where netfilter has a connection of its own.
fn reserve(
    (protocol, tuple, state): &Written,
    is_new: bool,
    now: Instant,
) -> Result<Option<Instant>, Error> {
    let reserved = conntrack::reserve((*protocol, tuple, *state), LASTS, is_new);
    let reserved = reserved.map_err(|error| Error::System("make a conntrack entry", error))?;
    Ok(reserved.then_some(now))
}

fn release(all: &BTreeMap<Written, Instant>) -> Result<(), Error> {
    all.keys().try_for_each(|(protocol, tuple, _)| {
        let released = conntrack::release(*protocol, tuple);
        released.map_err(|error| Error::System("delete a conntrack entry", error))
    })
}

/// The connection that is written down for an entry of a flow. The reply entry gives
/// the client as the backend sees it, where that is an address of this node; the
/// forward entry of a process of this host gives its connection to the frontend.
fn written(
    settings: &Settings,
    key: &FlowKey,
    flow: &Flow,
    known: &BTreeSet<(Protocol, Tuple)>,
) -> Option<Written> {
    let FlowKey { protocol, tuple, side, .. } = *key;
    if flow.is_answer() {
        let is_ours = side == Side::INGRESS && settings.may_be_own(&tuple.destination);
        return is_ours.then(|| (protocol, tuple.reversed(), State::Unseen));
    }
    let is_of_host = flow.is_forward() && side == Side::EGRESS && protocol == Protocol::TCP;
    let is_open = is_of_host && known.contains(&(protocol, tuple));
    is_open.then_some((protocol, tuple, State::Open))
}

#[cfg(test)]
mod tests {
    use lb_common::addr::{Endpoint, Ip, Port};
    use lb_common::flow::Kind;

    use super::*;

    #[test]
    fn sources_of_this_node_and_open_connections_of_its_processes_are_written_down() {
        let end = |last, port| Endpoint::new(Ip::v4([10, 0, 0, last]), Port::new(port));
        let (node, client, frontend, backend) =
            (end(1, 40_000), end(2, 40_001), end(3, 80), end(4, 8_080));
        let mut settings = Settings::default();
        settings.add_own(&node.ip);
        let asked = Tuple::new(node, frontend);
        let known = BTreeSet::from([(Protocol::TCP, asked)]);
        let of = |tuple: Tuple, side, kind, flags| {
            let key = FlowKey::new(tuple, Protocol::TCP, side);
            let mut flow = Flow::new(tuple, kind, 0);
            flow.flags = flags;
            written(&settings, &key, &flow, &known)
        };
        let answer = Tuple::new(backend, node);
        let source = Some((Protocol::TCP, answer.reversed(), State::Unseen));
        assert_eq!(of(answer, Side::INGRESS, Kind::UNMASQUERADE, Flow::ANSWER), source);
        assert_eq!(of(answer, Side::INGRESS, Kind::REPLY, Flow::ANSWER), source);
        let others = Tuple::new(backend, client);
        assert_eq!(of(others, Side::EGRESS, Kind::REPLY, Flow::ANSWER), None);
        let open = Some((Protocol::TCP, asked, State::Open));
        assert_eq!(of(asked, Side::EGRESS, Kind::FORWARD, 0), open);
        assert_eq!(of(asked, Side::INGRESS, Kind::FORWARD, 0), None, "another node's");
        let over = Tuple::new(end(1, 40_002), frontend);
        assert_eq!(of(over, Side::EGRESS, Kind::FORWARD, 0), None, "it has ended");
    }
}
