//! The kernel's routes: `bpf_fib_lookup`.
//!
//! For packets that bypass the stack the lookup is the one of the stack's forwarding, and it succeeds only where
//! forwarding is on for the interface that the packet came in by, the packet fits the route's MTU and the next hop is
//! known. For masqueraded packets the lookup gives the source of a route, and succeeds where forwarding is on for the
//! interface that the packet leaves by. It shows nothing of a route that encapsulates.

use core::ffi::c_void;

use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS,
    BPF_FIB_LOOKUP_OUTPUT, BPF_FIB_LOOKUP_SKIP_NEIGH, BPF_FIB_LOOKUP_SRC,
};
use aya_ebpf::helpers::generated::bpf_fib_lookup;
use lb_common::addr::{Ip, Protocol};
use lb_common::flow::Tuple;
use lb_common::forward::Role;
use lb_common::route::{Route, RouteResult, Traffic};

/// `BPF_FIB_LOOKUP_MARK` of `linux/bpf.h`, since Linux 6.10: not among aya's bindings.
const BPF_FIB_LOOKUP_MARK: u32 = 32;
/// `-EINVAL`: a flag that this kernel does not know.
const UNKNOWN: i64 = -22;
/// `AF_INET` and `AF_INET6`.
pub(crate) const FAMILIES: [u8; 2] = [2, 10];

/// `struct bpf_fib_lookup`, with the input members of its unions; numbers as on the wire but for `length` and `device`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Question {
    family: u8,
    protocol: u8,
    source_port: u16,
    destination_port: u16,
    length: u16,
    device: u32,
    class: u32,
    source: [u32; 4],
    destination: [u32; 4],
    table: u32,
    /// Source, then destination. The mark of the packet, with its flag.
    hardware: [u16; 6],
}

impl Question {
    /// The lookup for a packet of this tuple.
    #[inline(always)]
    fn new(tuple: &Tuple, protocol: Protocol, v4: bool) -> Self {
        let [family4, family6] = FAMILIES;
        // An IPv4 address is the last word of an [`Ip`], and the first of the kernel's four.
        let address = |ip: &Ip| if v4 { [ip.last_word(), 0, 0, 0] } else { ip.words() };
        Self {
            family: if v4 { family4 } else { family6 },
            protocol: protocol.0,
            source_port: u16::from_ne_bytes(tuple.source_port.octets()),
            destination_port: u16::from_ne_bytes(tuple.destination_port.octets()),
            source: address(&tuple.source),
            destination: address(&tuple.destination),
            ..Self::default()
        }
    }

    /// Calls the helper. `context`: the program's own, of an skb or of an XDP frame.
    #[inline(always)]
    fn ask(&mut self, context: *mut c_void, flags: u32) -> i64 {
        let length = size_of::<Self>() as i32;
        // SAFETY: the context is the program's own; the helper reads and writes `length` bytes of this structure.
        unsafe { bpf_fib_lookup(context, core::ptr::from_mut(self).cast(), length, flags) }
    }

    /// As [`Question::ask`], by the rules for packets with this mark (since Linux 6.10; before, by those without one).
    #[inline(always)]
    fn ask_marked(&mut self, context: *mut c_void, flags: u32, mark: u32) -> i64 {
        let mut answer = UNKNOWN;
        if mark != 0 {
            let [a, b, c, d] = mark.to_ne_bytes();
            self.hardware = [u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]), 0, 0, 0, 0];
            answer = self.ask(context, flags | BPF_FIB_LOOKUP_MARK);
        }
        // The kernel refuses an unknown flag before it writes anything, so the structure serves once more.
        if answer == UNKNOWN {
            answer = self.ask(context, flags);
        }
        answer
    }
}

/// Two values of 16 bits as one word, in memory order.
///
/// VERIFIER: read one by one, for a word of the stack must lie at a multiple of four.
#[inline(always)]
fn pair(first: &u16, second: &u16) -> u32 {
    // SAFETY: both are live.
    let [a, b] = unsafe { core::ptr::from_ref(first).read_volatile() }.to_ne_bytes();
    // SAFETY: as above.
    let [c, d] = unsafe { core::ptr::from_ref(second).read_volatile() }.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Looks up the route of a packet that came in by `device`. `context`: the program's own, of an skb or of an XDP frame.
#[inline(always)]
pub(crate) fn look_up(
    context: *mut c_void,
    device: u32,
    tuple: &Tuple,
    protocol: Protocol,
    traffic: Traffic,
    into: &mut Route,
) -> RouteResult {
    let mut question = Question {
        length: traffic.length,
        device,
        class: traffic.class,
        ..Question::new(tuple, protocol, traffic.v4)
    };
    // Without flags the kernel routes as for a packet that arrives by `device`: by the rules, and for forwarding.
    let answer = question.ask(context, 0);
    match u32::try_from(answer) {
        Ok(BPF_FIB_LKUP_RET_SUCCESS) => {
            into.device = question.device;
            let [s0, s1, s2, d0, d1, d2] = &question.hardware;
            into.hardware = [pair(d0, d1), pair(d2, s0), pair(s1, s2)];
            RouteResult::Known
        }
        Ok(BPF_FIB_LKUP_RET_FRAG_NEEDED) => RouteResult::TooBig,
        Ok(BPF_FIB_LKUP_RET_NO_NEIGH) => RouteResult::NoNeighbour,
        _ => RouteResult::None,
    }
}

/// Looks up the route of a packet that this host created, as its stack does when it sends: among output routes, though
/// forwarding must be on for `lo`.
///
/// The address of the next hop is found where its link-layer address is known: a packet that waits for the latter leaves
/// by the neighbour of its own route (`neigh_update` in `net/core/neighbour.c`), which the kernel must replace then.
/// `mark`: of the packet. `context`: the program's own, of an skb.
#[inline(always)]
pub(crate) fn look_up_of_host(
    context: *mut c_void,
    tuple: &Tuple,
    protocol: Protocol,
    length: u16,
    mark: u32,
    into: &mut Route,
) -> RouteResult {
    let v4 = tuple.destination.is_v4();
    let mut question =
        // A lookup of the kernel for output has `lo` as the incoming interface (`ip_route_output_key_hash` in
        // net/ipv4/route.c), so that rules with `iif lo` count. `BPF_FIB_LOOKUP_OUTPUT` would take routes by one
        // interface only.
        Question { length, device: Role::LOOPBACK, ..Question::new(tuple, protocol, v4) };
    let answer = question.ask_marked(context, 0, mark);
    into.device = question.device;
    match u32::try_from(answer) {
        Ok(BPF_FIB_LKUP_RET_SUCCESS) => {
            // The kernel has replaced the destination by the gateway, for IPv4 perhaps one of IPv6.
            let [family4, _] = FAMILIES;
            let [first, ..] = question.destination;
            let is_v4 = question.family == family4;
            // Before Linux 6.10 this lookup does not know the mark.
            into.gateway = match (mark, is_v4) {
                (0, true) => Ip::v4_word(first),
                (0, false) => Ip::from_words(question.destination),
                (_, _) => Ip::UNSPECIFIED,
            };
            RouteResult::Known
        }
        Ok(BPF_FIB_LKUP_RET_NO_NEIGH) => RouteResult::NoNeighbour,
        Ok(BPF_FIB_LKUP_RET_FRAG_NEEDED) => {
            // The kernel returns the MTU in place of the length (`mtu_result` of `struct bpf_fib_lookup`).
            into.mtu = question.length.into();
            RouteResult::TooBig
        }
        _ => RouteResult::None,
    }
}

/// Looks up the source of a packet that leaves by `device` (Linux 6.7; nothing before).
///
/// The source is that of its route where the route has one, as a network's own has. Otherwise, for IPv4, it is the
/// address in the gateway's network, or the interface's first one where there is none; for IPv6 it is the choice of RFC
/// 6724 for the destination.
///
/// The stack has chosen a route before. This lookup applies the rules again, with both addresses, ports, protocol and
/// mark (as it is now; since Linux 6.10), and only routes by the interface count. It knows neither the interface of
/// arrival nor the traffic class, so where a rule on those decides, the source is that of another route. The next hop
/// is not needed.
#[inline(always)]
pub(crate) fn source(
    context: *mut c_void,
    device: u32,
    mark: u32,
    tuple: &Tuple,
    protocol: Protocol,
) -> Option<Ip> {
    let v4 = tuple.destination.is_v4();
    // A length that fits every route: without one the kernel compares the whole packet with the interface's MTU.
    let mut question = Question { length: 1, device, ..Question::new(tuple, protocol, v4) };
    let flags = BPF_FIB_LOOKUP_OUTPUT | BPF_FIB_LOOKUP_SRC | BPF_FIB_LOOKUP_SKIP_NEIGH;
    let answer = question.ask_marked(context, flags, mark);
    // IPv6 prefers routes by the interface, and takes one by another interface where there is none.
    if answer != i64::from(BPF_FIB_LKUP_RET_SUCCESS) || question.device != device {
        return None;
    }
    let [first, ..] = question.source;
    Some(if v4 { Ip::v4_word(first) } else { Ip::from_words(question.source) })
}
