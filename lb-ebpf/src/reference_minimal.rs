//! The least that a tc program can do for one `ClusterIP` with one backend (`minimal` of `bench traffic`).
//!
//! Packets from the client's interface get the backend's address, returning ones the frontend's. No table, no state, no
//! counter, no choice and no route lookup: everything is a constant of the loaded program.

use aya_ebpf::bindings::TC_ACT_UNSPEC;
use aya_ebpf::helpers::generated::{bpf_redirect_neigh, bpf_redirect_peer};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;

use crate::reference_packet::{SOURCE, TARGET, Target, V4, V6, ether_type, parse, rewrite};

/// The values that the loader sets; addresses and ports as they are in packets.
#[repr(C)]
#[derive(Clone, Copy)]
struct Setting<const W: usize> {
    frontend: [u32; W],
    backend: [u32; W],
    /// The router or neighbour through which the backend is reached.
    next_hop: [u32; W],
    /// The ports of the frontend and of the backend.
    ports: [u16; 2],
    /// The interface to the backend; 0: through the stack.
    out: u32,
    /// The interface of the client; 0: through the stack.
    client: u32,
}

const fn nothing<const W: usize>() -> Setting<W> {
    let (frontend, backend, next_hop) = ([0; W], [0; W], [0; W]);
    Setting { frontend, backend, next_hop, ports: [0; 2], out: 0, client: 0 }
}

#[unsafe(no_mangle)]
static MINIMAL4: Setting<V4> = nothing();
#[unsafe(no_mangle)]
static MINIMAL6: Setting<V6> = nothing();

/// `struct bpf_redir_neigh`.
///
/// VERIFIER: a value that the compiler writes at once must lie at a multiple of its size on the stack.
#[repr(C, align(8))]
struct Neighbour {
    family: u32,
    address: [u32; 4],
}

/// Size of the structure without the padding of the alignment.
const NEIGHBOUR: i32 = 20;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;

/// Reads a setting as the loader patched it: the compiler must not assume the value in the source.
#[inline(always)]
fn read<const W: usize>(setting: &'static Setting<W>) -> Setting<W> {
    // SAFETY: a live static of plain numbers.
    unsafe { core::ptr::from_ref(setting).read_volatile() }
}

/// Sends a packet for the frontend to the backend; `None` for other packets.
#[inline(always)]
fn ask<const W: usize>(context: &TcContext, setting: &'static Setting<W>) -> Option<i32> {
    let setting = read(setting);
    let key = parse::<TcContext, W>(context)?;
    let [port, target] = setting.ports;
    if key.destination() != setting.frontend || key.ports()[1] != port {
        return None;
    }
    let backend = Target::new(setting.backend, target);
    rewrite::<TcContext, W, TARGET>(context, &key, &backend)?;
    if setting.out == 0 {
        return None;
    }
    let mut hop = Neighbour { family: AF_INET, address: [0; 4] };
    if W == V6 {
        hop.family = AF_INET6;
    }
    let mut word = 0;
    while word < W {
        hop.address[word] = setting.next_hop[word];
        word += 1;
    }
    // SAFETY: the helper reads the neighbour, and records where the packet is to go.
    Some(unsafe { bpf_redirect_neigh(setting.out, (&raw mut hop).cast(), NEIGHBOUR, 0) } as i32)
}

/// Sends a packet of the backend to the client; `None` for other packets.
#[inline(always)]
fn answer<const W: usize>(context: &TcContext, setting: &'static Setting<W>) -> Option<i32> {
    let setting = read(setting);
    let key = parse::<TcContext, W>(context)?;
    let [port, target] = setting.ports;
    if key.source() != setting.backend || key.ports()[0] != target {
        return None;
    }
    let frontend = Target::new(setting.frontend, port);
    rewrite::<TcContext, W, SOURCE>(context, &key, &frontend)?;
    if setting.client == 0 {
        return None;
    }
    // SAFETY: the helper only records where the packet is to go.
    Some(unsafe { bpf_redirect_peer(setting.client, 0) } as i32)
}

/// Attached at the ingress of the client's interface.
#[classifier]
fn minimal_ask(context: TcContext) -> i32 {
    let done = match ether_type(&context) {
        Some([0x08, 0x00]) => ask(&context, &MINIMAL4),
        Some([0x86, 0xdd]) => ask(&context, &MINIMAL6),
        _ => None,
    };
    done.unwrap_or(TC_ACT_UNSPEC)
}

/// Attached where answers come in, or at the egress of the client's interface.
#[classifier]
fn minimal_answer(context: TcContext) -> i32 {
    let done = match ether_type(&context) {
        Some([0x08, 0x00]) => answer(&context, &MINIMAL4),
        Some([0x86, 0xdd]) => answer(&context, &MINIMAL6),
        _ => None,
    };
    done.unwrap_or(TC_ACT_UNSPEC)
}
