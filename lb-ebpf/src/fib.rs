//! The kernel's routes, for what goes past the stack: `bpf_fib_lookup`, which asks as the stack does when it forwards.
//!
//! It answers only where forwarding is on for the device, the packet fits the route's MTU and the next hop is known.

use core::ffi::c_void;

use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS,
};
use aya_ebpf::helpers::generated::bpf_fib_lookup;
use lb_common::addr::Protocol;
use lb_common::flow::Tuple;
use lb_common::route::{Route, Traffic, Way};

/// `AF_INET` and `AF_INET6`.
const FAMILIES: [u8; 2] = [2, 10];

/// `struct bpf_fib_lookup`, its unions as they are on the way in; numbers as on the wire but for `length` and `device`.
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
    /// Source, then destination.
    hardware: [u16; 6],
}

/// Two halves in memory order.
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

/// Asks for the way of a packet that came in by `device`. `context`: the program's own, of an skb or of an XDP frame.
#[inline(always)]
pub(crate) fn look_up(
    context: *mut c_void,
    device: u32,
    (tuple, protocol, traffic): (&Tuple, Protocol, Traffic),
    into: &mut Route,
) -> Way {
    let [v4, v6] = FAMILIES;
    // An IPv4 address is the last word of ours, and the first of the kernel's.
    let address = |ip: &lb_common::addr::Ip| {
        if traffic.v4 { [ip.last_word(), 0, 0, 0] } else { ip.words() }
    };
    let mut question = Question {
        family: if traffic.v4 { v4 } else { v6 },
        protocol: protocol.0,
        source_port: u16::from_ne_bytes(tuple.source_port.octets()),
        destination_port: u16::from_ne_bytes(tuple.destination_port.octets()),
        length: traffic.length,
        device,
        class: traffic.class,
        source: address(&tuple.source),
        destination: address(&tuple.destination),
        ..Question::default()
    };
    let length = size_of::<Question>() as i32;
    // SAFETY: the context is the program's own, an skb or a frame; the helper reads and writes `length` bytes.
    let answer = unsafe { bpf_fib_lookup(context, (&raw mut question).cast(), length, 0) };
    match u32::try_from(answer) {
        Ok(BPF_FIB_LKUP_RET_SUCCESS) => {
            into.device = question.device;
            let [s0, s1, s2, d0, d1, d2] = &question.hardware;
            into.hardware = [pair(d0, d1), pair(d2, s0), pair(s1, s2)];
            Way::Known
        }
        Ok(BPF_FIB_LKUP_RET_FRAG_NEEDED) => Way::TooBig,
        Ok(BPF_FIB_LKUP_RET_NO_NEIGH) => Way::NoNeighbour,
        _ => Way::None,
    }
}
