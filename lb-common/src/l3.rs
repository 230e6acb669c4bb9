//! Packets of interfaces without a link-layer header (`WireGuard`, ipip, gre, tun): they begin with their IP header.
//!
//! The path sees them as if an Ethernet header of zeros lay in front, so that it has one set of offsets. Writes to that
//! header have no effect; where such a packet returns by its interface, there are no addresses to swap.

use crate::addr::{Ip, Protocol};
use crate::checksum::Difference;
use crate::flow::{Held, Tuple};
use crate::hook::{Hooked, Point};
use crate::packet::{Covered, Packet};
use crate::route::{Route, RouteResult, Traffic};
use crate::wire::ETHERNET;

/// Offset of the type in an Ethernet header.
const TYPE: usize = 12;

/// A packet whose type is known without a link-layer header. Its own offsets count from the IP header.
pub trait Typed: Packet {
    /// The type of the packet, as in the header of Ethernet.
    fn ether_type(&self) -> [u8; 2];
}

/// A packet without a link-layer header, with the offsets of [`Packet`].
#[derive(Debug)]
pub struct L3<P>(pub P);

impl<P: Typed> L3<P> {
    /// `N` bytes of the header that is not there.
    #[inline(always)]
    fn link<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        if at == TYPE {
            for (byte, kind) in bytes.iter_mut().zip(self.0.ether_type()) {
                *byte = kind;
            }
        }
        bytes
    }
}

/// An offset known only at run time, counted from the IP header. An offset before that header becomes one beyond the
/// end of every packet.
///
/// VERIFIER: no comparison here, which would make the verifier walk on separately for each way in which an offset was
/// found.
#[inline(always)]
const fn behind_link(at: usize) -> usize {
    at.wrapping_sub(ETHERNET)
}

impl<P: Typed> Hooked for L3<P> {
    #[inline(always)]
    fn point(&self) -> Point {
        // XDP is never attached to an interface without a link-layer header (ADR 0022).
        Point::Tc
    }

    #[inline(always)]
    fn requeue(&mut self) -> Option<()> {
        self.0.requeue()
    }

    #[inline(always)]
    fn route(&self, _: &Tuple, _: Protocol, _: Traffic, _: &mut Route) -> RouteResult {
        // No packet bypasses the stack at an interface without a link-layer header (ADR 0021).
        RouteResult::None
    }

    #[inline(always)]
    fn route_of_host(
        &self,
        tuple: &Tuple,
        protocol: Protocol,
        length: u16,
        into: &mut Route,
    ) -> RouteResult {
        self.0.route_of_host(tuple, protocol, length, into)
    }

    #[inline(always)]
    fn source(&self, tuple: &Tuple, protocol: Protocol, device: u32) -> Option<Ip> {
        self.0.source(tuple, protocol, device)
    }

    #[inline(always)]
    fn has_socket(&self, tuple: &Tuple, protocol: Protocol) -> bool {
        self.0.has_socket(tuple, protocol)
    }

    #[inline(always)]
    fn device(&self) -> u32 {
        self.0.device()
    }

    #[inline(always)]
    fn is_from_host(&self) -> bool {
        self.0.is_from_host()
    }

    #[inline(always)]
    fn mark_masqueraded(&mut self) {
        self.0.mark_masqueraded();
    }

    #[inline(always)]
    fn is_masqueraded(&self) -> bool {
        self.0.is_masqueraded()
    }
}

impl<P: Typed> Packet for L3<P> {
    #[inline(always)]
    fn has_tags(&self) -> bool {
        false
    }

    #[inline(always)]
    fn is_tagged(&self) -> bool {
        self.0.is_tagged()
    }

    #[inline(always)]
    fn is_of_vlan(&self) -> bool {
        self.0.is_of_vlan()
    }

    #[inline(always)]
    fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        // The offset is a constant of the caller, so the program has one of the two branches.
        if at < ETHERNET { Some(self.link(at)) } else { self.0.read(at - ETHERNET) }
    }

    #[inline(always)]
    fn words<const N: usize>(&self, at: usize) -> Option<[u32; N]> {
        self.0.words(at.checked_sub(ETHERNET)?)
    }

    #[inline(always)]
    fn u64s<const N: usize>(&self, at: usize) -> Option<[u64; N]> {
        self.0.u64s(at.checked_sub(ETHERNET)?)
    }

    #[inline(always)]
    fn read_at<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.read_at(behind_link(at))
    }

    #[inline(always)]
    fn write<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> Option<()> {
        if at < ETHERNET { Some(()) } else { self.0.write(at - ETHERNET, bytes) }
    }

    #[inline(always)]
    fn set_words<const N: usize>(&mut self, at: usize, words: [u32; N]) -> Option<()> {
        self.0.set_words(at.checked_sub(ETHERNET)?, words)
    }

    #[inline(always)]
    fn set_u64s<const N: usize>(&mut self, at: usize, u64s: [u64; N]) -> Option<()> {
        self.0.set_u64s(at.checked_sub(ETHERNET)?, u64s)
    }

    #[inline(always)]
    fn write_at<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> Option<()> {
        self.0.write_at(behind_link(at), bytes)
    }

    #[inline(always)]
    fn checksum(
        &mut self,
        at: usize,
        change: Difference,
        covered: Covered,
        zero_is_none: bool,
    ) -> Option<()> {
        self.0.checksum(at.checked_sub(ETHERNET)?, change, covered, zero_is_none)
    }

    #[inline(always)]
    fn summed(&mut self, change: Difference) {
        self.0.summed(change);
    }

    #[inline(always)]
    fn shifted(&self, word: u32, behind: u16) -> u32 {
        self.0.shifted(word, behind)
    }

    #[inline(always)]
    fn checksum_at(
        &mut self,
        at: usize,
        change: Difference,
        covered: Covered,
        zero_is_none: bool,
    ) -> Option<()> {
        self.0.checksum_at(behind_link(at), change, covered, zero_is_none)
    }

    #[inline(always)]
    fn reshape(&mut self, keep: usize, link: usize, room: usize) -> Option<()> {
        self.0.reshape(behind_link(keep), link.checked_sub(ETHERNET)?, room)
    }

    #[inline(always)]
    fn keep(&self, into: &mut Held) -> Option<()> {
        self.0.keep(into)
    }

    #[inline(always)]
    fn become_held(&mut self, held: &Held) -> Option<()> {
        self.0.become_held(held)
    }

    #[inline(always)]
    fn length(&self) -> usize {
        self.0.length() + ETHERNET
    }

    #[inline(always)]
    fn segment(&self) -> usize {
        self.0.segment()
    }
}

#[cfg(test)]
mod tests {
    use std::string::String;
    use std::vec::Vec;

    use super::*;
    use crate::config::Settings;
    use crate::event::{Hook, PassReason, Verdict};
    use crate::fake::{Bytes, Fixture, Home, assert_packet_eq, fixtures, run, run_l3};

    /// The fixtures at tc alone, with packets through the stack: without a link layer no packet bypasses it.
    fn at_tc() -> impl Iterator<Item = Fixture> {
        let is_tc = |fixture: &Fixture| {
            !fixture.tables.settings.has(Settings::BYPASSES)
                && fixture.steps.iter().all(|it| it.hook != Hook::ExternalXdp)
        };
        fixtures::all().into_iter().filter(is_tc)
    }

    #[test]
    fn every_fixture_ends_alike_with_and_without_a_link_layer() {
        let mut compared = 0;
        for Fixture { name, tables, steps, .. } in at_tc() {
            let ours = tables.clone();
            for step in steps.iter().filter(|step| step.packet.len() > ETHERNET) {
                let (verdict, out) = run(step, &tables);
                if verdict == Verdict::Pass(PassReason::OtherMachine) {
                    continue;
                }
                let (l3, rest) = run_l3(step, &ours);
                assert_eq!(l3, verdict, "{name}");
                let back = [&step.packet[..ETHERNET], &out[ETHERNET..]].concat();
                assert_packet_eq(&[&step.packet[..ETHERNET], &rest].concat(), &back, &name);
                compared += u32::from(!matches!(verdict, Verdict::Pass(_)));
            }
            assert_eq!(ours.all_flows(), tables.all_flows(), "{name}");
        }
        assert!(compared > 300, "{compared} packets");
    }

    #[test]
    fn the_header_that_is_not_there_is_zeros_and_a_type() {
        let mut packet = Bytes::new(Vec::from(*b"packet"), Home::Skb);
        packet.l3 = Some([0x86, 0xdd]);
        let mut l3 = L3(packet);
        assert_eq!(l3.read(0), Some([0; 6]));
        assert_eq!(l3.read(TYPE), Some([0x86, 0xdd]));
        assert_eq!(l3.read(ETHERNET), Some(*b"packet"));
        assert_eq!(l3.read::<1>(ETHERNET + 6), None);
        assert_eq!((l3.write(0, [1; 6]), l3.write(6, [2; 6])), (Some(()), Some(())));
        assert_eq!(l3.write(ETHERNET, *b"PA"), Some(()));
        assert_eq!((String::from_utf8_lossy(&l3.0.data), l3.length()), ("PAcket".into(), 20));
    }

    #[test]
    fn fragment_held_at_the_other_kind_of_interface_is_not_taken() {
        let mut framed = Bytes::new(Vec::from([7; 20]), Home::Skb);
        let mut l3 = framed.clone();
        l3.l3 = Some([0x08, 0x00]);
        let (mut one, mut other) = (Held::default(), Held::default());
        assert_eq!((framed.keep(&mut one), l3.keep(&mut other)), (Some(()), Some(())));
        assert_eq!((framed.become_held(&other), l3.become_held(&one)), (None, None));
        assert_eq!((framed.become_held(&one), l3.become_held(&other)), (Some(()), Some(())));
        assert_eq!(l3.data, [7; 20]);
    }
}
