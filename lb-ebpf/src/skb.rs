//! A packet at the tc hooks. Checksums go through the kernel's helpers, which know which ones are partial.

use aya_ebpf::bindings::{
    __sk_buff, BPF_F_INGRESS, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM,
};
use aya_ebpf::helpers::generated::{
    bpf_clone_redirect, bpf_csum_update, bpf_l4_csum_replace, bpf_skb_adjust_room,
    bpf_skb_change_head, bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_store_bytes,
};
use aya_ebpf::programs::TcContext;
use lb_common::addr::{Ip, Protocol};
use lb_common::checksum::{Difference, crc32c};
use lb_common::flow::{Held, Tuple};
use lb_common::hook::{Hooked, Point};
use lb_common::l3::{L3, Typed};
use lb_common::packet::{Covered, Packet};
use lb_common::route::{Route, RouteResult, Traffic};
use lb_common::wire::ETHERNET;

use crate::{fib, headers, linear, socket_lookup};

/// The mark of a masqueraded packet: a number that no other program of the hook is likely to write there.
const MASQUERADED: u32 = 0x6c62_6d71;

/// `BPF_ADJ_ROOM_MAC`: room is made between the link-layer header and the rest.
const BEHIND_LINK: u32 = 1;
/// An skb as [`Packet`], and the mark of its kind in [`Held::length`].
pub(crate) struct Skb<'a>(&'a TcContext, u32);

impl<'a> Skb<'a> {
    /// Takes the packet of a program, and makes its headers linear.
    #[inline(always)]
    pub(crate) fn new(context: &'a TcContext) -> Self {
        Self::reaching(context, 0)
    }

    /// The same for an interface without a link-layer header.
    #[inline(always)]
    pub(crate) fn l3(context: &'a TcContext) -> L3<Self> {
        L3(Self::reaching(context, Held::L3))
    }

    /// Takes a packet whose headers are linear already.
    #[inline(always)]
    pub(crate) const fn linear(context: &'a TcContext) -> Self {
        Self(context, 0)
    }

    /// The same for an interface without a link-layer header.
    #[inline(always)]
    pub(crate) const fn l3_linear(context: &'a TcContext) -> L3<Self> {
        L3(Self(context, Held::L3))
    }

    /// The kernel's own packet.
    #[inline(always)]
    pub(crate) const fn raw(&self) -> *mut __sk_buff {
        self.0.skb.skb
    }

    /// The mark of the packet (`SO_MARK`, netfilter).
    #[inline(always)]
    fn mark(&self) -> u32 {
        // SAFETY: a field of the program's own context.
        unsafe { (*self.0.skb.skb).mark }
    }

    #[inline(always)]
    fn reaching(context: &'a TcContext, mark: u32) -> Self {
        let skb = Self(context, mark);
        let (start, end) = (context.data(), context.data_end());
        // A short packet, linear as a whole, costs no call.
        if start + ETHERNET + headers::longest(skb.ether_type()) > end
            && Packet::length(&skb) > end - start
        {
            let network = if mark == Held::L3 { 0 } else { ETHERNET as u32 };
            headers::make_linear(skb.raw(), network);
        }
        skb
    }

    /// Adds an Ethernet header to a packet that has none: without one it can neither be sent to a next hop nor be
    /// accepted by an interface that has such headers. `to`: its destination.
    #[inline(always)]
    pub(crate) fn lay_link(&mut self, to: [u8; 6]) -> Option<()> {
        let kind = self.ether_type();
        // SAFETY: the skb is the program's own context (kernel 5.8 for such interfaces).
        let result = unsafe { bpf_skb_change_head(self.0.skb.skb, ETHERNET as u32, 0) };
        if result != 0 {
            return None;
        }
        self.write(0, to)?;
        self.write(ETHERNET - 2, kind)
    }
}

/// The length of a packet that can be held; `None` where it is too long or empty.
///
/// VERIFIER: the length less one is compared, hidden from the compiler, which would compare it and pass on another
/// copy; one more than that value has both bounds by arithmetic. `!= 0` raises no minimum before Linux 6.8.
#[inline(always)]
fn bounded(length: u32) -> Option<u32> {
    let less = u64::from(length.wrapping_sub(1));
    // SAFETY: a live local variable.
    let less = unsafe { core::ptr::read_volatile(&raw const less) };
    if less < Held::LARGEST as u64 { Some((less + 1) as u32) } else { None }
}

impl Typed for Skb<'_> {
    #[inline(always)]
    fn ether_type(&self) -> [u8; 2] {
        // SAFETY: a field of the program's own context.
        let [first, second, ..] = unsafe { (*self.0.skb.skb).protocol }.to_ne_bytes();
        [first, second]
    }
}

impl Hooked for Skb<'_> {
    #[inline(always)]
    fn point(&self) -> Point {
        Point::Tc
    }

    #[inline(always)]
    fn requeue(&mut self) -> Option<()> {
        let device = self.device();
        // SAFETY: the skb is the program's own context; the helper clones it and leaves its data in place.
        let result =
            unsafe { bpf_clone_redirect(self.0.skb.skb, device, u64::from(BPF_F_INGRESS)) };
        if result == 0 { Some(()) } else { None }
    }

    #[inline(always)]
    fn route(
        &self,
        tuple: &Tuple,
        protocol: Protocol,
        traffic: Traffic,
        into: &mut Route,
    ) -> RouteResult {
        fib::look_up(self.0.skb.skb.cast(), self.device(), tuple, protocol, traffic, into)
    }

    #[inline(always)]
    fn route_of_host(
        &self,
        tuple: &Tuple,
        protocol: Protocol,
        length: u16,
        into: &mut Route,
    ) -> RouteResult {
        fib::look_up_of_host(self.0.skb.skb.cast(), tuple, protocol, length, self.mark(), into)
    }

    #[inline(always)]
    fn source(&self, tuple: &Tuple, protocol: Protocol, device: u32) -> Option<Ip> {
        fib::source(self.0.skb.skb.cast(), device, self.mark(), tuple, protocol)
    }

    #[inline(always)]
    fn has_socket(&self, tuple: &Tuple, protocol: Protocol) -> bool {
        socket_lookup::exists(self.0.skb.skb.cast(), tuple, protocol)
    }

    #[inline(always)]
    fn device(&self) -> u32 {
        // SAFETY: a field of the program's own context.
        unsafe { (*self.0.skb.skb).ifindex }
    }

    #[inline(always)]
    fn is_from_host(&self) -> bool {
        // SAFETY: a field of the program's own context; 0 for packets that this host's stack created.
        unsafe { (*self.0.skb.skb).ingress_ifindex == 0 }
    }

    #[inline(always)]
    fn mark_masqueraded(&mut self) {
        // SAFETY: a field of the program's own context, which programs of one hook share and no driver reads
        // (`bpf_convert_ctx_access` in net/core/filter.c).
        unsafe { (*self.0.skb.skb).cb[0] = MASQUERADED };
    }

    #[inline(always)]
    fn is_masqueraded(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.0.skb.skb).cb[0] == MASQUERADED }
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
    fn is_of_vlan(&self) -> bool {
        /// `VLAN_VID_MASK`.
        const NUMBER: u32 = 0x0fff;
        // SAFETY: as above. Without a tag the field is 0.
        unsafe { (*self.0.skb.skb).vlan_tci & NUMBER != 0 }
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
        // SAFETY: the helper reads exactly the `N` bytes of the array.
        let result = unsafe {
            // No flag for the checksum: callers report a change that nothing in the packet balances by `summed`.
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
        // With a field size of 0 the helper takes the whole difference at once (`inet_proto_csum_replace_by_diff`).
        let sum = u64::from(change.wsum());
        // SAFETY: the skb is the program's own context; the helper checks the offset.
        let result =
            unsafe { bpf_l4_csum_replace(self.0.skb.skb, at as u32, 0, sum, pseudo | zero) };
        if result == 0 { Some(()) } else { None }
    }

    #[inline(always)]
    fn summed(&mut self, change: Difference) {
        // SAFETY: the skb is the program's own context. Without such a sum the helper fails, and nothing has to change.
        let _sum: i64 = unsafe { bpf_csum_update(self.0.skb.skb, change.wsum()) };
    }

    #[inline(always)]
    fn shifted(&self, word: u32, behind: u16) -> u32 {
        sctp_shifted(word, behind.into())
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
        let length = bounded(self.length() as u32)?;
        into.length = length | self.1;
        let bytes = into.bytes.as_mut_ptr().cast();
        // SAFETY: the helper writes exactly `length` bytes, which fit, or fails.
        let result = unsafe { bpf_skb_load_bytes(self.0.skb.skb.cast(), 0, bytes, length) };
        if result == 0 { Some(()) } else { None }
    }

    #[inline(always)]
    fn become_held(&mut self, held: &Held) -> Option<()> {
        let skb = self.0.skb.skb;
        if held.length & Held::L3 != self.1 {
            return None;
        }
        let length = bounded(held.length & !Held::L3)?;
        // SAFETY: the skb is the program's own context.
        if unsafe { bpf_skb_change_tail(skb, length, 0) } != 0 {
            return None;
        }
        // VERIFIER: the bounds of a value that is spilled over a call may be lost, so they are checked after it.
        let length = bounded(length)?;
        // All bytes change, and with them the sum over the first fragment that a card may have computed.
        let (bytes, flags) = (held.bytes.as_ptr().cast(), u64::from(BPF_F_RECOMPUTE_CSUM));
        // SAFETY: the helper reads exactly `length` bytes, and the buffer has as many.
        let result = unsafe { bpf_skb_store_bytes(skb, 0, bytes, length, flags) };
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
        match unsafe { (*self.0.skb.skb).gso_size } {
            headers::BY_FRAGS => headers::segment_of_list(self.raw()),
            size => size as usize,
        }
    }
}

/// Global in the object, as the parts are: inlined, its loops would be most of the verifier's work for a rewrite.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn sctp_shifted(word: u32, behind: u32) -> u32 {
    crc32c::shifted(word, behind as u16)
}
