//! A socket call at the cgroup hooks: the address that a process named, and how the result is written.
//!
//! Minimum kernel 5.18 (`bpf_set_retval`).

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::generated::{bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_set_retval};
use aya_ebpf::programs::SockAddrContext;
use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use lb_common::event::Event;
use lb_common::flow::Peer;
use lb_common::forward::Choice;
use lb_common::forward::socket::{self, Call, Named, Outcome};
use lb_common::tables::Clock as _;

use crate::kernel::Kernel;
use crate::maps::{PEERS, SOCKET_SCRATCH};

/// Return value: the call continues.
const ALLOW: i32 = 1;
/// Return value: the call fails with the error set before.
const DENY: i32 = 0;
const REFUSED: i32 = -111;

/// Address family of the hook: it decides which field of the context holds the address.
#[derive(Clone, Copy)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Handles a `connect`: the data path decides, and the result is written to the call. A socket may connect again,
/// elsewhere: after a refusal, or after it was disconnected.
#[inline(always)]
pub(crate) fn connect(
    context: &SockAddrContext,
    family: Family,
    decide: impl FnOnce(&mut Choice, &Call, Named) -> Outcome,
) -> i32 {
    let Some(mut call) = call(context, family) else {
        return ALLOW;
    };
    // Most calls name no frontend: these need no working memory.
    let Some(named) = socket::named(&Kernel, &call) else {
        forget(context);
        return ALLOW;
    };
    // The cookie costs a call of the kernel, so only a call that names a frontend asks for it.
    // SAFETY: the helper takes the context of a socket address program.
    call.socket = unsafe { bpf_get_socket_cookie(context.as_ptr()) };
    let outcome = with(context, |choice| decide(choice, &call, named));
    match outcome {
        // Without working memory the socket's packets are translated instead.
        None | Some(Outcome::Leave) => forget(context),
        Some(Outcome::Use(backend)) => {
            // Before the working memory is freed: the kernel frees the storage of a socket with its last element.
            remember(context, Peer { frontend: call.remote, backend });
            set(context.sock_addr, family, &backend);
        }
        Some(Outcome::Refuse) => {}
    }
    give_back(context);
    if outcome == Some(Outcome::Refuse) { fail(REFUSED) } else { ALLOW }
}

/// Takes the working memory of the call's socket. `None`, counted, where there is none.
///
/// The programs run for a process that stays on its CPU, but packets and other processes may interrupt
/// (`bpf_prog_run_array_cg` disables migration only), so the memory cannot be per CPU. A socket has one call at a time:
/// the kernel holds its lock around each of these hooks.
#[inline(always)]
fn with(context: &SockAddrContext, decide: impl FnOnce(&mut Choice) -> Outcome) -> Option<Outcome> {
    // SAFETY: the socket of the program's own context.
    let choice = unsafe { SOCKET_SCRATCH.get_or_insert_ptr_mut(context, None) };
    // SAFETY: null, or memory of this socket, whose lock is held.
    let Some(choice) = (unsafe { choice.as_mut() }) else {
        Kernel.count(Event::SocketNoMemory);
        return None;
    };
    Some(decide(choice))
}

/// Frees the working memory, to which no reference is left.
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
fn give_back(context: &SockAddrContext) {
    // SAFETY: a field of the program's own context.
    let socket = unsafe { (*context.sock_addr).__bindgen_anon_1.sk };
    // SAFETY: the socket of the program's own context.
    let _there: Result<(), i32> = unsafe { SOCKET_SCRATCH.delete(socket) };
}

/// Stores the frontend that `getpeername` reports from now on. Without memory `getpeername` reports the backend; the
/// connection works all the same.
#[inline(always)]
fn remember(context: &SockAddrContext, peer: Peer) {
    // SAFETY: the socket of the program's own context.
    let kept = unsafe { PEERS.get_or_insert_ptr_mut(context, None) };
    // The helper leaves a value of an earlier `connect` unchanged.
    // SAFETY: null, or memory of this socket, whose lock is held.
    if let Some(kept) = unsafe { kept.as_mut() } {
        *kept = peer;
    }
}

/// Removes the value that an earlier `connect` stored: its backend may be the address that the process names now.
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
fn forget(context: &SockAddrContext) {
    // SAFETY: a field of the program's own context.
    let socket = unsafe { (*context.sock_addr).__bindgen_anon_1.sk };
    // SAFETY: the socket of the program's own context.
    let _there: Result<(), i32> = unsafe { PEERS.delete(socket) };
}

#[inline(always)]
fn fail(errno: i32) -> i32 {
    // SAFETY: the helper takes any errno; it is allowed at connect hooks.
    let _old: i32 = unsafe { bpf_set_retval(errno) };
    DENY
}

/// Reports the peer of a socket to its process. Needs no working memory: `accept(2)` comes here, too.
#[inline(always)]
pub(crate) fn name(context: &SockAddrContext, family: Family) -> i32 {
    // SAFETY: the socket of the program's own context.
    let peer = unsafe { PEERS.get_ptr_mut(context) };
    // SAFETY: null, or memory of this socket that only its `connect` writes.
    let peer = unsafe { peer.as_ref() };
    if let Outcome::Use(frontend) = socket::peer_name(&Kernel, peer, &remote(context, family)) {
        set(context.sock_addr, family, &frontend);
    }
    ALLOW
}

/// Reads the call, without the cookie of its socket. `None` where it is left alone: for protocols and network
/// namespaces that the socket hooks do not serve.
#[inline(always)]
fn call(context: &SockAddrContext, family: Family) -> Option<Call> {
    // SAFETY: a field of the program's own context.
    let protocol = Protocol(unsafe { (*context.sock_addr).protocol } as u8);
    // A datagram socket stays connected to the frontend, so that its packets follow each change of the backends
    // (ADR 0027).
    if protocol != Protocol::TCP {
        return None;
    }
    let call = Call {
        remote: remote(context, family),
        local: Endpoint::new(local(context, family), port(context)),
        protocol,
        socket: 0,
        // SAFETY: the helper takes the context of a socket address program.
        netns: unsafe { bpf_get_netns_cookie(context.as_ptr()) },
    };
    socket::is_served(&Kernel, &call).then_some(call)
}

/// The address and port that the call names.
#[inline(always)]
fn remote(context: &SockAddrContext, family: Family) -> Endpoint {
    let address = context.sock_addr;
    // SAFETY: a field of the program's own context; the port lies in its first two bytes.
    let [a, b, ..] = unsafe { (*address).user_port }.to_ne_bytes();
    Endpoint::new(ip(address, family), Port::from_wire([a, b]))
}

/// The port that the socket is bound to.
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
fn port(context: &SockAddrContext) -> Port {
    // SAFETY: a field of the socket of the program's own context. It is in the byte order of the machine.
    let port = unsafe { (*(*context.sock_addr).__bindgen_anon_1.sk).src_port };
    Port::new(port as u16)
}

/// The address that the socket is bound to.
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
fn local(context: &SockAddrContext, family: Family) -> Ip {
    // SAFETY: a field of the program's own context.
    let socket = unsafe { (*context.sock_addr).__bindgen_anon_1.sk };
    match family {
        // SAFETY: a field of the socket of the program's own context, valid in this family.
        Family::V4 => Ip::v4(unsafe { (*socket).src_ip4 }.to_ne_bytes()),
        Family::V6 => {
            // SAFETY: as above. VERIFIER: word by word, a wider load is refused.
            let [a, b, c, d] = unsafe {
                [
                    core::ptr::read_volatile(&raw const (*socket).src_ip6[0]),
                    core::ptr::read_volatile(&raw const (*socket).src_ip6[1]),
                    core::ptr::read_volatile(&raw const (*socket).src_ip6[2]),
                    core::ptr::read_volatile(&raw const (*socket).src_ip6[3]),
                ]
            };
            Ip::from_words([a, b, c, d])
        }
    }
}

#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
fn ip(address: *mut bpf_sock_addr, family: Family) -> Ip {
    match family {
        // SAFETY: a field of the program's own context, valid at the hooks of this family.
        Family::V4 => Ip::v4(unsafe { (*address).user_ip4 }.to_ne_bytes()),
        Family::V6 => {
            // SAFETY: as above.
            let [a, b, c, d] = unsafe {
                [
                    core::ptr::read_volatile(&raw const (*address).user_ip6[0]),
                    core::ptr::read_volatile(&raw const (*address).user_ip6[1]),
                    core::ptr::read_volatile(&raw const (*address).user_ip6[2]),
                    core::ptr::read_volatile(&raw const (*address).user_ip6[3]),
                ]
            };
            // A dual-stack socket names an IPv4 frontend as a mapped address, which is the form of an `Ip` as well.
            Ip::from_words([a, b, c, d])
        }
    }
}

#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
fn set(address: *mut bpf_sock_addr, family: Family, endpoint: &Endpoint) {
    let [a, b] = endpoint.port.octets();
    match family {
        // SAFETY: a field of the program's own context that programs may write.
        Family::V4 => unsafe { (*address).user_ip4 = u32::from_ne_bytes(endpoint.ip.v4_octets()) },
        Family::V6 => {
            let [w0, w1, w2, w3] = endpoint.ip.words();
            // SAFETY: as above. VERIFIER: word by word, a wider store is refused.
            unsafe {
                core::ptr::write_volatile(&raw mut (*address).user_ip6[0], w0);
                core::ptr::write_volatile(&raw mut (*address).user_ip6[1], w1);
                core::ptr::write_volatile(&raw mut (*address).user_ip6[2], w2);
                core::ptr::write_volatile(&raw mut (*address).user_ip6[3], w3);
            }
        }
    }
    // SAFETY: as above; the port lies in the first two bytes of the word.
    unsafe { (*address).user_port = u32::from_ne_bytes([a, b, 0, 0]) };
}
