//! A packet at the tc hooks. Checksums go through the kernel's helpers, which know what is partial.

use aya_ebpf::bindings::{
    BPF_F_INGRESS, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM,
};
use aya_ebpf::helpers::generated::{
    bpf_clone_redirect, bpf_csum_update, bpf_l4_csum_replace, bpf_skb_adjust_room,
    bpf_skb_change_head, bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_pull_data,
    bpf_skb_store_bytes,
};
use aya_ebpf::programs::TcContext;
use lb_common::addr::{Ip, Protocol};
use lb_common::bare::{Bare, Typed};
use lb_common::checksum::Difference;
use lb_common::flow::{Held, Tuple};
use lb_common::packet::{Covered, Packet};
use lb_common::route::{Route, Traffic, Way};
use lb_common::wire::ETHERNET;

use crate::{fib, linear};

/// `BPF_ADJ_ROOM_MAC`: room is made between the link-layer header and the rest.
const BEHIND_LINK: u32 = 1;
/// Bytes of headers that must lie in the linear part: Ethernet, IPv6, TCP.
const HEADERS: u32 = 14 + 40 + 20;

/// An skb as [`Packet`], and what marks it in [`Held::length`].
pub(crate) struct Skb<'a>(&'a TcContext, u32);

impl<'a> Skb<'a> {
    /// Takes the packet of a program, its headers in reach.
    #[inline(always)]
    pub(crate) fn new(context: &'a TcContext) -> Self {
        Self::reaching(context, 0)
    }

    /// The same of a device without a link-layer header.
    #[inline(always)]
    pub(crate) fn bare(context: &'a TcContext) -> Bare<Self> {
        Bare(Self::reaching(context, Held::BARE))
    }

    #[inline(always)]
    fn reaching(context: &'a TcContext, mark: u32) -> Self {
        let skb = Self(context, mark);
        if context.data() + HEADERS as usize > context.data_end() {
            skb.pull(HEADERS);
        }
        skb
    }

    /// Lays an Ethernet header of zeros in front of a packet that has none: without one it is not sent to a next hop.
    #[inline(always)]
    pub(crate) fn lay_link(&self) -> Option<()> {
        // SAFETY: the skb is the program's own context (kernel 5.8 for such devices).
        let result = unsafe { bpf_skb_change_head(self.0.skb.skb, ETHERNET as u32, 0) };
        if result == 0 { Some(()) } else { None }
    }

    /// Makes the first `length` bytes linear, if there are as many; a short packet, linear as a whole,
    /// costs no call.
    #[inline(always)]
    fn pull(&self, length: u32) {
        let skb = self.0.skb.skb;
        // SAFETY: a field of the program's own context.
        let length = unsafe { (*skb).len }.min(length);
        if ((self.0.data_end() - self.0.data()) as u32) < length {
            // SAFETY: the skb is the program's own context. What cannot be pulled fails to be read.
            let _pulled: i64 = unsafe { bpf_skb_pull_data(skb, length) };
        }
    }
}

/// The length of a packet that is held, if it can be.
///
/// VERIFIER: seen together, both comparisons become one of the length less one, and the length itself
/// stays without bounds.
#[inline(always)]
fn bounded(length: usize) -> Option<u32> {
    if length > Held::LARGEST {
        return None;
    }
    // SAFETY: a live local variable.
    let length = unsafe { core::ptr::read_volatile(&raw const length) };
    if length == 0 { None } else { Some(length as u32) }
}

impl Typed for Skb<'_> {
    #[inline(always)]
    fn ether_type(&self) -> [u8; 2] {
        // SAFETY: a field of the program's own context.
        let [first, second, ..] = unsafe { (*self.0.skb.skb).protocol }.to_ne_bytes();
        [first, second]
    }
}

impl Packet for Skb<'_> {
    linear::access!();

    #[inline(always)]
    fn has_tags(&self) -> bool {
        false
    }

    #[inline(always)]
    fn is_tagged(&self) -> bool {
        // SAFETY: a field of the program's own context.
        unsafe { (*self.0.skb.skb).vlan_present != 0 }
    }

    #[inline(always)]
    fn is_frame(&self) -> bool {
        false
    }

    #[inline(always)]
    fn read_at<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        // SAFETY: the helper writes exactly `N` bytes or fails.
        let result = unsafe {
            bpf_skb_load_bytes(
                self.0.skb.skb.cast(),
                at as u32,
                bytes.as_mut_ptr().cast(),
                N as u32,
            )
        };
        if result == 0 { Some(bytes) } else { None }
    }

    #[inline(always)]
    fn write_at<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> Option<()> {
        // SAFETY: the helper reads exactly `N` bytes of ours.
        let result = unsafe {
            bpf_skb_store_bytes(self.0.skb.skb, at as u32, bytes.as_ptr().cast(), N as u32, 0)
        };
        if result == 0 { Some(()) } else { None }
    }

    #[inline(always)]
    fn checksum(
        &mut self,
        at: usize,
        change: Difference,
        covered: Covered,
        zero_is_none: bool,
    ) -> Option<()> {
        let pseudo = match covered {
            Covered::PseudoHeader => u64::from(BPF_F_PSEUDO_HDR),
            Covered::Payload => 0,
        };
        let zero = if zero_is_none { u64::from(BPF_F_MARK_MANGLED_0) } else { 0 };
        let sum = u64::from(change.wsum());
        // SAFETY: the skb is the program's own context; the helper checks the offset.
        let result =
            unsafe { bpf_l4_csum_replace(self.0.skb.skb, at as u32, 0, sum, pseudo | zero) };
        if result == 0 { Some(()) } else { None }
    }

    #[inline(always)]
    fn summed(&mut self, change: Difference) {
        // SAFETY: the skb is the program's own context. It has such a sum or not.
        let _sum: i64 = unsafe { bpf_csum_update(self.0.skb.skb, change.wsum()) };
    }

    #[inline(always)]
    fn checksum_at(
        &mut self,
        at: usize,
        change: Difference,
        covered: Covered,
        zero_is_none: bool,
    ) -> Option<()> {
        self.checksum(at, change, covered, zero_is_none)
    }

    #[inline(always)]
    fn reshape(&mut self, keep: usize, _link: usize, room: usize) -> Option<()> {
        let skb = self.0.skb.skb;
        // SAFETY: the skb is the program's own context.
        if unsafe { bpf_skb_change_tail(skb, keep as u32, 0) } != 0 {
            return None;
        }
        if room == 0 {
            return Some(());
        }
        // SAFETY: the skb is the program's own context.
        let result = unsafe { bpf_skb_adjust_room(skb, room as i32, BEHIND_LINK, 0) };
        if result == 0 { Some(()) } else { None }
    }

    #[inline(always)]
    fn keep(&self, into: &mut Held) -> Option<()> {
        let length = bounded(self.length())?;
        into.length = length | self.1;
        let bytes = into.bytes.as_mut_ptr().cast();
        // SAFETY: the helper writes exactly `length` bytes, which fit, or fails.
        let result = unsafe { bpf_skb_load_bytes(self.0.skb.skb.cast(), 0, bytes, length) };
        if result == 0 { Some(()) } else { None }
    }

    #[inline(always)]
    fn become_held(&mut self, held: &Held) -> Option<()> {
        let skb = self.0.skb.skb;
        if held.length & Held::BARE != self.1 {
            return None;
        }
        let length = bounded((held.length & !Held::BARE) as usize)?;
        // SAFETY: the skb is the program's own context.
        if unsafe { bpf_skb_change_tail(skb, length, 0) } != 0 {
            return None;
        }
        let (bytes, flags) = (held.bytes.as_ptr().cast(), u64::from(BPF_F_RECOMPUTE_CSUM));
        // SAFETY: the helper reads exactly `length` bytes, and there are as many.
        let result = unsafe { bpf_skb_store_bytes(skb, 0, bytes, length, flags) };
        if result == 0 { Some(()) } else { None }
    }

    #[inline(always)]
    fn again(&mut self) -> Option<()> {
        let device = self.device();
        // SAFETY: the skb is the program's own context; the helper leaves it its own data.
        let result =
            unsafe { bpf_clone_redirect(self.0.skb.skb, device, u64::from(BPF_F_INGRESS)) };
        if result == 0 { Some(()) } else { None }
    }

    #[inline(always)]
    fn length(&self) -> usize {
        // SAFETY: a field of the program's own context.
        unsafe { (*self.0.skb.skb).len as usize }
    }

    #[inline(always)]
    fn segment(&self) -> usize {
        // SAFETY: a field of the program's own context.
        unsafe { (*self.0.skb.skb).gso_size as usize }
    }

    #[inline(always)]
    fn route(&self, tuple: &Tuple, protocol: Protocol, traffic: Traffic, into: &mut Route) -> Way {
        fib::look_up(self.0.skb.skb.cast(), self.device(), (tuple, protocol, traffic), into)
    }

    #[inline(always)]
    fn source(&self, tuple: &Tuple, protocol: Protocol, device: u32) -> Option<Ip> {
        let skb = self.0.skb.skb;
        // SAFETY: a field of the program's own context.
        let mark = unsafe { (*skb).mark };
        fib::source(skb.cast(), (device, mark), tuple, protocol)
    }

    #[inline(always)]
    fn device(&self) -> u32 {
        // SAFETY: a field of the program's own context.
        unsafe { (*self.0.skb.skb).ifindex }
    }

    #[inline(always)]
    fn is_from_host(&self) -> bool {
        // SAFETY: a field of the program's own context; 0 for what this host's stack made.
        unsafe { (*self.0.skb.skb).ingress_ifindex == 0 }
    }
}
