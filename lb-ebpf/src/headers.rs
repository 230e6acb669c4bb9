//! The part of an skb that must be linear: its headers.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::bindings::bpf_hdr_start_off::BPF_HDR_START_NET;
use aya_ebpf::helpers::generated::{bpf_skb_load_bytes_relative, bpf_skb_pull_data};
use aya_ebpf::programs::TcContext;
use lb_common::addr::Protocol;
use lb_common::wire::{self, ETHERNET, TYPE_IPV4, TYPE_IPV6};

use crate::linear;

/// Bytes of the headers that the path reads.
const IPV4: u32 = wire::IPV4 as u32;
const IPV6: u32 = wire::IPV6 as u32;
const TCP: u32 = 20;
const UDP: u32 = 8;
const SCTP: u32 = 12;
/// An ICMP header, and the beginning of the packet that it quotes.
const QUOTED: u32 = 40;
/// The protocol of IPv4 and IPv6 as a field of the context.
const IS_IPV4: u32 = u16::from_ne_bytes(TYPE_IPV4) as u32;
const IS_IPV6: u32 = u16::from_ne_bytes(TYPE_IPV6) as u32;
/// `GSO_BY_FRAGS` (`include/linux/skbuff.h`): the segments of an skb are the packets of its list, as SCTP sends them.
pub(crate) const BY_FRAGS: u32 = 0xffff;

/// The number of bytes of the IP header and the header behind it: at most, without options and extensions.
#[inline(always)]
pub(crate) const fn longest(ether_type: [u8; 2]) -> usize {
    let is_v4 = u16::from_ne_bytes(ether_type) as u32 == IS_IPV4;
    (if is_v4 { IPV4 + TCP } else { IPV6 + TCP }) as usize
}

/// Whether the data of a packet at an interface without a link-layer header begin with an Ethernet header all the same.
///
/// The kernel leaves the header of the outer packet in front of one that came out of `IPsec`
/// (`xfrm4_remove_tunnel_encap` in `net/xfrm/xfrm_input.c`; `xfrm` and `vti` interfaces), and of one from `ovpn` before
/// Linux 7.1; `tcx_run` makes it part of the data.
#[inline(always)]
pub(crate) fn has_outer_header(context: &TcContext) -> bool {
    /// Bytes that tell the beginning of an IP packet from that of a frame.
    const SOME: usize = 8;
    let skb = context.skb.skb;
    // SAFETY: a field of the program's own context.
    let kind = unsafe { (*skb).protocol };
    // An IP packet has part of an address there, which may look like the protocol: then the bytes decide.
    let at_type = context.load::<[u8; 2]>(ETHERNET - 2);
    if u32::from(at_type.map_or(0, u16::from_ne_bytes)) != kind {
        return false;
    }
    let mut network = [0_u8; SOME];
    // SAFETY: the helper writes exactly this many bytes or fails.
    let result = unsafe {
        bpf_skb_load_bytes_relative(
            skb.cast(),
            0,
            network.as_mut_ptr().cast(),
            SOME as u32,
            BPF_HDR_START_NET,
        )
    };
    let first = context.load::<[u8; SOME]>(0);
    result == 0 && first.is_ok_and(|first| first != network)
}

/// Makes the headers of a packet linear, and nothing behind them. `network`: offset of its IP header.
///
/// The bytes behind them may be a list of packets, for SCTP and with `rx-gro-list`. A header that has taken bytes from
/// the first one no longer ends where a segment begins: `skb_segment` (`net/core/skbuff.c`) then stops the kernel
/// by `BUG_ON`, or sends corrupt segments.
#[inline(never)]
pub(crate) fn make_linear(skb: *mut __sk_buff, network: u32) {
    let context = TcContext::new(skb);
    // SAFETY: a field of the program's own context.
    let kind = unsafe { (*skb).protocol };
    // SAFETY: as above.
    let is_list = unsafe { (*skb).gso_size } == BY_FRAGS;
    let (ip, next) = match kind {
        IS_IPV4 => (IPV4, 9),
        IS_IPV6 => (IPV6, 6),
        _ => return,
    };
    pull(&context, network + ip);
    // VERIFIER: the helper invalidates all pointers into the packet, so they are taken after it.
    let (start, end) = (context.data(), context.data_end());
    let first: Option<[u8; 1]> = linear::read(start, end, network as usize);
    let protocol: Option<[u8; 1]> = linear::read(start, end, network as usize + next);
    let (Some([first]), Some([protocol])) = (first, protocol) else { return };
    // The header of IPv4 may have options; IPv6 extensions, and what follows them, are read by a helper.
    let ip = if kind == IS_IPV4 { u32::from(first & 0x0f) * 4 } else { ip };
    let transport = match Protocol(protocol) {
        Protocol::UDP => UDP,
        Protocol::SCTP if is_list => SCTP,
        Protocol::TCP | Protocol::SCTP => TCP,
        Protocol::ICMP | Protocol::ICMP6 => QUOTED,
        _ => return,
    };
    pull(&context, network + ip + transport);
}

/// Payload bytes of a packet of a list ([`BY_FRAGS`]), on average: the packets of one SCTP message are as large as the
/// socket takes the MTU to be, except for the last one.
#[inline(always)]
pub(crate) fn segment_of_list(skb: *mut __sk_buff) -> usize {
    // SAFETY: a field of the program's own context.
    let ip = if unsafe { (*skb).protocol } == IS_IPV4 { IPV4 } else { IPV6 };
    // SAFETY: as above.
    let payload = unsafe { (*skb).len }.saturating_sub(ETHERNET as u32 + ip + SCTP);
    // SAFETY: as above.
    payload.div_ceil(unsafe { (*skb).gso_segs }.max(1)) as usize
}

/// Makes the first `length` bytes linear, if there are as many; a short packet, linear as a whole, costs no call.
#[inline(always)]
fn pull(context: &TcContext, length: u32) {
    let skb = context.skb.skb;
    // The helper refuses more bytes than the packet has, which must not keep a short packet from being read.
    // SAFETY: a field of the program's own context.
    let length = unsafe { (*skb).len }.min(length);
    if ((context.data_end() - context.data()) as u32) < length {
        // SAFETY: the skb is the program's own context. Bytes that cannot be pulled fail to be read.
        let _pulled: i64 = unsafe { bpf_skb_pull_data(skb, length) };
    }
}
