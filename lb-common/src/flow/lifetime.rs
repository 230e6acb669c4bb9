//! How long the entries of an idle flow are valid, for the data path and for the agent's sweep alike.
//!
//! The values follow netfilter's defaults (`nf_conntrack_proto_*.c`)
//! and those of kube-proxy's configuration (contract 3.11).

use super::{Flow, FlowKey, Shown};
use crate::addr::Protocol;
use crate::layout::plain;

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// Seconds for a TCP connection whose handshake is not complete, or that was seen in one direction only.
const OPENING: u32 = 60;
/// Seconds for a TCP connection that both ends closed, or that one end reset.
pub const CLOSED: u32 = 10;

/// Seconds for an open TCP connection that an unproven RST or FIN claims to have ended.
///
/// Longer than the interval of keep-alive probes (`net.ipv4.tcp_keepalive_time`, 7,200 s), by which a live connection
/// shows that the claim was false.
const KEEP_ALIVE: u32 = 7_260;

/// The configurable lifetimes, in seconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Datagram flows that were never answered, or whose traffic has not lasted [`Lifetimes::STREAM`].
    pub unreplied: u32,
    /// Datagram flows that were answered and lasted longer.
    pub stream: u32,
    /// Open TCP connections.
    pub open: u32,
    /// TCP connections that one end closed.
    pub half_closed: u32,
    /// SCTP associations that were answered.
    pub sctp: u32,
}

plain!(Lifetimes = 20 { unreplied, stream, open, half_closed, sctp });

impl Default for Lifetimes {
    fn default() -> Self {
        // Netfilter's defaults, and for TCP those of kube-proxy (contract 3.11).
        Self { unreplied: 30, stream: 120, open: 86_400, half_closed: 3_600, sctp: 210 }
    }
}

/// The facts about a flow that decide how long it may be idle.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// Flags that packets of its client have shown.
    pub forward: Shown,
    /// Flags that packets of its backend have shown.
    pub reply: Shown,
    /// Whether its traffic has lasted [`Lifetimes::STREAM`].
    pub is_stream: bool,
}

impl Lifetimes {
    /// Seconds of traffic after which a datagram flow is a stream (`nf_conntrack_proto_udp.c`, `stream_ts`).
    pub const STREAM: u32 = 2;

    /// Seconds that a flow may be idle.
    #[inline(always)]
    pub const fn seconds(&self, protocol: Protocol, life: Life) -> u32 {
        let Life { forward, reply, is_stream } = life;
        let both = forward.established & reply.established != 0;
        match protocol {
            Protocol::TCP => {
                if forward.is_over(reply) {
                    CLOSED
                } else if !both {
                    // Packets of one end alone may be those of a flood (ADR 0025).
                    OPENING
                } else if forward.fin | reply.fin != 0 {
                    self.half_closed
                } else if forward.claimed | reply.claimed != 0 {
                    // A claim never makes the life of a flow longer.
                    min(self.open, KEEP_ALIVE)
                } else {
                    self.open
                }
            }
            Protocol::SCTP if both => self.sctp,
            _ if both && is_stream => self.stream,
            _ => self.unreplied,
        }
    }

    /// The longest time in seconds that a flow may be idle after both ends have sent packets.
    #[inline(always)]
    pub const fn longest(&self, protocol: Protocol) -> u32 {
        match protocol {
            Protocol::TCP => max(self.open, self.half_closed),
            Protocol::SCTP => self.sctp,
            _ => max(self.stream, self.unreplied),
        }
    }

    /// Whether the flow of an entry has expired at a time of `CLOCK_MONOTONIC` in nanoseconds, given the entry of the
    /// other direction.
    #[inline(always)]
    pub const fn is_over(
        &self,
        key: &FlowKey,
        flow: &Flow,
        opposite: Option<&Flow>,
        now: u64,
    ) -> bool {
        // The later time counts: a connection lives as long as either end sends. Without the other entry nothing shows
        // an answer.
        let (shown, seen) = match opposite {
            Some(opposite) if opposite.seen > flow.seen => (opposite.shown, opposite.seen),
            Some(opposite) => (opposite.shown, flow.seen),
            None => (Shown::NOTHING, flow.seen),
        };
        let (forward, reply) =
            if flow.is_answer() { (shown, flow.shown) } else { (flow.shown, shown) };
        let life = Life { forward, reply, is_stream: has_lasted(flow, seen) };
        now.saturating_sub(seen) >= self.seconds(key.protocol, life) as u64 * SECOND
    }

    /// The shortest time in seconds that the flow of an entry may be idle, whatever the other direction has shown.
    /// [`Lifetimes::is_over`] decides in the end.
    pub const fn least(&self, protocol: Protocol, flow: &Flow) -> u32 {
        match protocol {
            Protocol::TCP if flow.shown.rst | flow.shown.fin | flow.shown.claimed != 0 => CLOSED,
            Protocol::TCP if flow.is_protected() => {
                min(min(self.half_closed, self.open), KEEP_ALIVE)
            }
            Protocol::TCP => CLOSED,
            Protocol::SCTP => min(self.unreplied, self.sctp),
            _ => min(self.unreplied, self.stream),
        }
    }
}

const fn min(one: u32, other: u32) -> u32 {
    if one < other { one } else { other }
}

const fn max(one: u32, other: u32) -> u32 {
    if one > other { one } else { other }
}

/// The duration [`Lifetimes::STREAM`] in steps of [`Flow::moment`].
const STREAM: u32 = ((Lifetimes::STREAM as u64 * SECOND) >> 27) as u32 + 1;

/// Whether the traffic of a flow, up to the time when it was last seen, has lasted long enough for a stream.
#[inline(always)]
pub const fn has_lasted(flow: &Flow, seen: u64) -> bool {
    Flow::moment(seen).wrapping_sub(flow.begun) >= STREAM
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_follow_the_flow() {
        let of = Lifetimes::default();
        let (none, open, fin, rst) = (Shown::NOTHING, Shown::ESTABLISHED, Shown::FIN, Shown::RST);
        let (claimed, claimed_fin) = (open.with(Shown::CLAIMED), Shown::CLAIMED_FIN);
        let life = |forward, reply| Life { forward, reply, is_stream: false };
        for (forward, reply, seconds) in [
            (none, none, OPENING),
            (none, open, OPENING),
            (open, none, OPENING),
            (fin, none, OPENING),
            (open, open, of.open),
            (fin, open, of.half_closed),
            (open, fin, of.half_closed),
            (fin, fin, CLOSED),
            (open, rst, CLOSED),
            (rst, none, CLOSED),
            (claimed, open, KEEP_ALIVE),
            (open, claimed_fin, KEEP_ALIVE),
            (claimed_fin, claimed_fin, KEEP_ALIVE),
            (claimed, fin, of.half_closed),
            (fin, claimed_fin, CLOSED),
            (claimed_fin, none, OPENING),
        ] {
            let seen = of.seconds(Protocol::TCP, life(forward, reply));
            assert_eq!(seen, seconds, "{forward:?} {reply:?}");
        }
        for (protocol, reply, is_stream, seconds) in [
            (Protocol::UDP, none, true, of.unreplied),
            (Protocol::UDP, open, false, of.unreplied),
            (Protocol::UDP, open, true, of.stream),
            (Protocol::SCTP, none, true, of.unreplied),
            (Protocol::SCTP, open, false, of.sctp),
        ] {
            let life = Life { forward: open, reply, is_stream };
            assert_eq!(of.seconds(protocol, life), seconds, "{protocol:?}");
        }
    }

    #[test]
    fn longest_life_is_that_of_the_idlest_flow_that_was_answered() {
        let of = Lifetimes { unreplied: 30, stream: 20, open: 50, half_closed: 60, sctp: 25 };
        let longest = [Protocol::TCP, Protocol::SCTP, Protocol::UDP].map(|it| of.longest(it));
        assert_eq!(longest, [60, 25, 30]);
        let of = Lifetimes { stream: 40, open: 70, ..of };
        assert_eq!([of.longest(Protocol::TCP), of.longest(Protocol::UDP)], [70, 40]);
    }

    #[test]
    fn least_life_is_the_shortest_that_the_other_direction_may_leave() {
        let of = Lifetimes { unreplied: 30, stream: 20, open: 50, half_closed: 60, sctp: 25 };
        let flow = |shown, flags| Flow { flags, shown, ..Flow::default() };
        let open = flow(Shown::ESTABLISHED, Flow::PROTECTED);
        assert_eq!(of.least(Protocol::TCP, &open), 50);
        assert_eq!(Lifetimes { open: 70, ..of }.least(Protocol::TCP, &open), 60);
        for ends in [Shown::FIN, Shown::RST, Shown::CLAIMED_FIN] {
            assert_eq!(of.least(Protocol::TCP, &flow(ends, Flow::PROTECTED)), CLOSED);
        }
        assert_eq!(of.least(Protocol::TCP, &flow(Shown::ESTABLISHED, 0)), CLOSED);
        assert_eq!([of.least(Protocol::SCTP, &open), of.least(Protocol::UDP, &open)], [25, 20]);
    }

    #[test]
    fn least_life_is_that_of_a_closed_flow_whatever_ends_it_together() {
        let of = Lifetimes::default();
        for [one, other] in [[Shown::FIN, Shown::RST], [Shown::FIN, Shown::CLAIMED]] {
            let shown = one.with(other);
            let flow = Flow { flags: Flow::PROTECTED, shown, ..Flow::default() };
            assert_eq!(of.least(Protocol::TCP, &flow), CLOSED, "{shown:?}");
        }
    }

    #[test]
    fn flag_that_is_shown_again_stays_shown() {
        let all = Shown { established: 1, fin: 1, rst: 1, claimed: 3 };
        assert_eq!(all.with(all), all);
    }
}
