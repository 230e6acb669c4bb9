//! A packet at the XDP hook: plain bytes, with complete checksums.

use aya_ebpf::helpers::generated::{
    bpf_xdp_adjust_head, bpf_xdp_adjust_tail, bpf_xdp_load_bytes, bpf_xdp_store_bytes,
};
use aya_ebpf::programs::XdpContext;
use lb_common::addr::{Ip, Protocol};
use lb_common::checksum::Difference;
use lb_common::flow::{Held, Tuple};
use lb_common::hook::{Hooked, Point};
use lb_common::packet::{Covered, Packet};
use lb_common::route::{Route, RouteResult, Traffic};

use crate::{fib, linear, socket_lookup};

/// An XDP frame as [`Packet`].
pub(crate) struct Frame<'a>(pub(crate) &'a XdpContext);

impl Frame<'_> {
    /// Moves the link-layer header to the front of the room made behind it.
    #[inline(always)]
    fn move_link<const LINK: usize>(&mut self, room: usize) -> Option<()> {
        let link: [u8; LINK] = self.read(room)?;
        self.write(0, link)
    }
}

/// The new checksum, if there is one.
#[inline(always)]
fn changed(old: [u8; 2], change: Difference, zero_is_none: bool) -> Option<[u8; 2]> {
    if zero_is_none && old == [0; 2] {
        return None;
    }
    let new = change.apply(old);
    // A UDP checksum of zero would say that there is none, so ones are sent for it (RFC 768).
    Some(if zero_is_none && new == [0; 2] { [0xff; 2] } else { new })
}

impl Hooked for Frame<'_> {
    #[inline(always)]
    fn point(&self) -> Point {
        Point::Xdp
    }

    #[inline(always)]
    fn requeue(&mut self) -> Option<()> {
        None
    }

    #[inline(always)]
    fn route(
        &self,
        tuple: &Tuple,
        protocol: Protocol,
        traffic: Traffic,
        into: &mut Route,
    ) -> RouteResult {
        fib::look_up(self.0.ctx.cast(), self.device(), tuple, protocol, traffic, into)
    }

    // XDP sees no packet that this host created.
    #[inline(always)]
    fn route_of_host(&self, _: &Tuple, _: Protocol, _: u16, _: &mut Route) -> RouteResult {
        RouteResult::None
    }

    // XDP never chooses the source of a masquerade: the stack has forwarded the flow before (ADR 0019).
    #[inline(always)]
    fn source(&self, _: &Tuple, _: Protocol, _: u32) -> Option<Ip> {
        None
    }

    #[inline(always)]
    fn has_socket(&self, tuple: &Tuple, protocol: Protocol) -> bool {
        socket_lookup::exists(self.0.ctx.cast(), tuple, protocol)
    }

    #[inline(always)]
    fn device(&self) -> u32 {
        // SAFETY: a field of the program's own context.
        unsafe { (*self.0.ctx).ingress_ifindex }
    }

    #[inline(always)]
    fn is_from_host(&self) -> bool {
        false
    }
}

impl Packet for Frame<'_> {
    linear::access!();

    #[inline(always)]
    fn has_tags(&self) -> bool {
        // The stack has not moved a tag out of the bytes yet, as it has before tc (`skb_vlan_untag` in
        // net/core/skbuff.c).
        true
    }

    #[inline(always)]
    fn is_tagged(&self) -> bool {
        // A tag that the card has stripped is not visible here: `Device::HAS_UPPER` stands for it (`exit/redirect`).
        false
    }

    #[inline(always)]
    fn is_of_vlan(&self) -> bool {
        false
    }

    #[inline(always)]
    fn read_at<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        // SAFETY: the helper writes exactly `N` bytes or fails (kernel 5.18).
        let result = unsafe {
            bpf_xdp_load_bytes(self.0.ctx, at as u32, bytes.as_mut_ptr().cast(), N as u32)
        };
        if result == 0 { Some(bytes) } else { None }
    }

    #[inline(always)]
    fn write_at<const N: usize>(&mut self, at: usize, mut bytes: [u8; N]) -> Option<()> {
        // SAFETY: the helper reads exactly the `N` bytes of the array (kernel 5.18).
        let result = unsafe {
            bpf_xdp_store_bytes(self.0.ctx, at as u32, bytes.as_mut_ptr().cast(), N as u32)
        };
        if result == 0 { Some(()) } else { None }
    }

    #[inline(always)]
    fn checksum(
        &mut self,
        at: usize,
        change: Difference,
        _covered: Covered,
        zero_is_none: bool,
    ) -> Option<()> {
        // A checksum that may be partial is left to tc (`looks_partial` in `exit/rewrite`), so both kinds of change
        // count.
        let old = self.read(at)?;
        changed(old, change, zero_is_none).map_or(Some(()), |new| self.write(at, new))
    }

    #[inline(always)]
    fn summed(&mut self, _change: Difference) {}

    #[inline(always)]
    fn checksum_at(
        &mut self,
        at: usize,
        change: Difference,
        _covered: Covered,
        zero_is_none: bool,
    ) -> Option<()> {
        let old = self.read_at(at)?;
        changed(old, change, zero_is_none).map_or(Some(()), |new| self.write_at(at, new))
    }

    #[inline(always)]
    fn reshape(&mut self, keep: usize, link: usize, room: usize) -> Option<()> {
        let cut = keep as i32 - self.length() as i32;
        // SAFETY: the frame is the program's own context.
        if unsafe { bpf_xdp_adjust_tail(self.0.ctx, cut) } != 0 {
            return None;
        }
        if room == 0 {
            return Some(());
        }
        // SAFETY: the frame is the program's own context.
        if unsafe { bpf_xdp_adjust_head(self.0.ctx, -(room as i32)) } != 0 {
            return None;
        }
        match link {
            14 => self.move_link::<14>(room),
            18 => self.move_link::<18>(room),
            _ => None,
        }
    }

    #[inline(always)]
    fn keep(&self, _into: &mut Held) -> Option<()> {
        None
    }

    #[inline(always)]
    fn become_held(&mut self, _held: &Held) -> Option<()> {
        None
    }

    #[inline(always)]
    fn length(&self) -> usize {
        // VERIFIER: hidden from the compiler, which would fold the difference of two packet pointers into arithmetic
        // that the verifier refuses. A frame in several buffers never gets here: the program does not declare support
        // for them.
        core::hint::black_box(self.0.data_end() - self.0.data())
    }

    #[inline(always)]
    fn segment(&self) -> usize {
        0
    }
}
