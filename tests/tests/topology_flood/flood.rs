//! Floods of packets from ever new sources.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lb_common::fake::{Datagram, Transport, at};
use lb_common::wire::tcp;
use lb_tests::campaign;
use lb_tests::topology::Member;
use lb_tests::traffic::{Handmade, spoofed};
use lb_tests::wait;

use super::CAPACITY;

/// The number of packets of a paced flood that are sent at once, and the time for them: at most 30,000 packets a
/// second.
const GO: (u32, Duration) = (300, Duration::from_millis(10));

/// Waits, where packet `number` of a flood is the last of those that are sent at once.
pub(super) fn keep_pace(number: u32, began: Instant) {
    let (packets, time) = GO;
    if number.is_multiple_of(packets) {
        // The time of sending counts: the pause ends when the next packets are due.
        wait::pass((time * (number / packets)).saturating_sub(began.elapsed()));
    }
}

/// The parameters of a flood, which each of its senders uses in each family.
#[derive(Clone, Copy)]
pub(super) struct Flood {
    /// The kinds of its packets.
    pub(super) kinds: &'static [Transport],
    /// The number of packets.
    pub(super) packets: u32,
    /// Whether it is limited to 30,000 packets a second.
    pub(super) is_paced: bool,
    /// Whether each source sends a packet of each kind.
    pub(super) is_in_turn: bool,
    /// Whether the payload of its packets is spoiled, so that their checksum is wrong.
    pub(super) is_spoiled: bool,
    /// The number of source ports, from [`FIRST_PORT`] on.
    pub(super) ports: u16,
}

/// The first source port of a flood.
pub(super) const FIRST_PORT: u16 = 1_024;
/// The number of source ports of most floods.
const PORTS: u16 = 60_000;
/// The number of source ports of floods from hosts with sockets: none of them is one that the kernel gives to sockets.
const UNUSED: u16 = 31_000;

impl Flood {
    /// First datagrams and SYNs alternately, as fast as possible.
    pub(super) fn of_first_packets() -> Self {
        const KINDS: &[Transport] = &[Transport::Udp(true), Transport::Tcp(tcp::SYN)];
        // Several times the capacity of the tables.
        let packets = campaign::size(4 * CAPACITY, 60_000);
        Self {
            kinds: KINDS,
            packets,
            is_paced: false,
            is_in_turn: false,
            is_spoiled: false,
            ports: PORTS,
        }
    }

    /// First datagrams and SYNs, 30,000 a second; for a minute in a campaign.
    pub(super) fn of_first_packets_at_a_rate() -> Self {
        Self {
            packets: campaign::size(10_000, 60 * 30_000),
            is_paced: true,
            ..Self::of_first_packets()
        }
    }

    /// First datagrams and SYNs, and segments without a connection, 30,000 a second.
    pub(super) fn of_every_kind() -> Self {
        const KINDS: &[Transport] = &[
            Transport::Udp(true),
            Transport::Tcp(tcp::SYN),
            Transport::Tcp(tcp::FIN),
            Transport::Tcp(tcp::FIN | tcp::ACK),
            Transport::Tcp(tcp::ACK),
            Transport::Tcp(tcp::RST),
            Transport::Tcp(0),
        ];
        Self { kinds: KINDS, ..Self::of_first_packets_at_a_rate() }
    }

    /// Datagrams with a wrong checksum, 30,000 a second; for 15 seconds in a campaign.
    pub(super) fn of_spoiled_datagrams() -> Self {
        const KINDS: &[Transport] = &[Transport::Udp(true)];
        Self {
            kinds: KINDS,
            packets: campaign::size(10_000, 15 * 30_000),
            is_spoiled: true,
            ports: UNUSED,
            ..Self::of_first_packets_at_a_rate()
        }
    }

    /// Datagrams that a backend answers, 30,000 a second: fewer than the source ports towards a backend of another node.
    pub(super) fn of_answered_datagrams() -> Self {
        Self {
            packets: campaign::size(6_000, 10_000),
            is_spoiled: false,
            ..Self::of_spoiled_datagrams()
        }
    }

    /// FINs and ACKs without a connection, 30,000 a second; for 20 seconds in a campaign.
    pub(super) fn of_fins_and_acks() -> Self {
        const KINDS: &[Transport] = &[Transport::Tcp(tcp::FIN), Transport::Tcp(tcp::ACK)];
        let packets = campaign::size(10_000, 20 * 30_000);
        Self { kinds: KINDS, packets, ..Self::of_first_packets_at_a_rate() }
    }

    /// SYNs, each followed by an ACK with a wrong number, 30,000 packets a second.
    pub(super) fn of_blind_handshakes() -> Self {
        const KINDS: &[Transport] = &[Transport::Tcp(tcp::SYN), Transport::Tcp(tcp::ACK)];
        let flood = Self::of_first_packets_at_a_rate();
        Self { kinds: KINDS, is_in_turn: true, ports: UNUSED, ..flood }
    }

    /// The same with segments that acknowledge nothing, which a backend drops without a RST.
    pub(super) fn of_unacknowledged_handshakes() -> Self {
        const KINDS: &[Transport] =
            &[Transport::Tcp(tcp::SYN), Transport::Tcp(0), Transport::Tcp(tcp::FIN)];
        Self { kinds: KINDS, ..Self::of_blind_handshakes() }
    }

    /// Sends packets to the addresses of `to` in turn, from ever new sources.
    pub(super) fn send(
        self,
        from: &Member,
        own: SocketAddr,
        to: &[SocketAddr],
        spoofs: bool,
    ) -> Result<u32> {
        let hand = Handmade::open(from, own)?;
        let (mut sent, began, kinds) = (0, Instant::now(), self.kinds.len() as u32);
        for number in 0..self.packets {
            let (source, kind) = if self.is_in_turn {
                (number / kinds, number % kinds)
            } else {
                (number, number / 7 % kinds)
            };
            let kind = *self.kinds.get(kind as usize).context("a kind")?;
            let target = *to.get(source as usize % to.len()).context("a target")?;
            let ip = if spoofs { spoofed(own, source) } else { own.ip() };
            let port = FIRST_PORT + (source % u32::from(self.ports)) as u16;
            let [source, to] = [SocketAddr::new(ip, port), target].map(|end| at(&end.to_string()));
            let packet = Datagram::new(source, to, kind);
            let outcome = if self.is_spoiled {
                hand.send_spoiled(&packet, target)
            } else {
                hand.send(&packet, target)
            };
            // A full send queue is not an error: the flood continues.
            sent += u32::from(outcome.is_ok());
            if self.is_paced {
                keep_pace(number, began);
            }
        }
        Ok(sent)
    }
}
