//! The kernel's tables of sockets: `bpf_skc_lookup_tcp` (Linux 5.2) and `bpf_sk_lookup_udp` (4.20), in the network
//! namespace of the packet's interface.

use core::ffi::c_void;
use core::ptr;

use aya_ebpf::bindings::{bpf_sock, bpf_sock_tuple};
use aya_ebpf::helpers::generated::{bpf_sk_lookup_udp, bpf_sk_release, bpf_skc_lookup_tcp};
use lb_common::addr::{Port, Protocol};
use lb_common::flow::Tuple;

/// `BPF_F_CURRENT_NETNS`, which is -1: the network namespace of the interface.
const CURRENT: u64 = u64::MAX;
/// `TCP_CLOSE` (`net/tcp_states.h`), which UDP sockets without a peer have.
const UNCONNECTED: u32 = 7;
/// `TCP_LISTEN`, which a socket has that accepts connections of any peer.
const LISTEN: u32 = 10;

/// Whether a socket has a peer, and gets packets of this tuple. `context`: the program's own, of an skb or of an XDP
/// frame.
#[inline(always)]
pub(crate) fn exists(context: *mut c_void, tuple: &Tuple, protocol: Protocol) -> bool {
    if tuple.destination.is_v4() {
        exists_v4(context, tuple, protocol)
    } else {
        // `struct bpf_sock_tuple`: its member for IPv6 has the layout of a `Tuple`.
        find(context, tuple, protocol)
    }
}

/// VERIFIER: a function of its own: merged with the other family, Linux 6.1 would take the short tuple on the stack for
/// one of IPv6.
#[inline(never)]
fn exists_v4(context: *mut c_void, tuple: &Tuple, protocol: Protocol) -> bool {
    let v4 = [
        tuple.source.last_word(),
        tuple.destination.last_word(),
        Port::word(tuple.source_port, tuple.destination_port),
    ];
    find(context, &v4, protocol)
}

/// Looks up a socket by a member of `struct bpf_sock_tuple`.
#[inline(always)]
fn find<K>(context: *mut c_void, tuple: &K, protocol: Protocol) -> bool {
    let (tuple, size) = (ptr::from_ref(tuple).cast_mut().cast(), size_of::<K>() as u32);
    match protocol {
        Protocol::TCP => tcp(context, tuple, size),
        Protocol::UDP => udp(context, tuple, size),
        _ => false,
    }
}

/// VERIFIER: a function of its own, as the next one: merged, the load of the state would get two types of pointers.
#[inline(never)]
fn tcp(context: *mut c_void, tuple: *mut bpf_sock_tuple, size: u32) -> bool {
    // SAFETY: the context is the program's own; the helper reads `size` bytes of the tuple.
    let socket = unsafe { bpf_skc_lookup_tcp(context, tuple, size, CURRENT, 0) };
    state(socket).is_some_and(|state| state != LISTEN)
}

#[inline(never)]
fn udp(context: *mut c_void, tuple: *mut bpf_sock_tuple, size: u32) -> bool {
    // SAFETY: as for TCP.
    let socket = unsafe { bpf_sk_lookup_udp(context, tuple, size, CURRENT, 0) };
    state(socket).is_some_and(|state| state != UNCONNECTED)
}

/// The state of a socket, whose reference is given back.
#[inline(always)]
fn state(socket: *mut bpf_sock) -> Option<u32> {
    if socket.is_null() {
        return None;
    }
    // VERIFIER: only fields of `struct sock_common` may be read, because the socket may be one in `TIME_WAIT`, or a
    // request.
    // SAFETY: the socket is not null, and its reference is held until here.
    let state = unsafe { (*socket).state };
    // SAFETY: the reference that the lookup took.
    let _released = unsafe { bpf_sk_release(socket.cast()) };
    Some(state)
}
