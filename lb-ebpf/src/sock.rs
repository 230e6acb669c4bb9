//! A socket call at the cgroup hooks: the address a process named, and how the answer is given.
//!
//! Minimum kernel 5.18 (`bpf_set_retval`).

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::generated::{bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_set_retval};
use aya_ebpf::programs::SockAddrContext;
use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use lb_common::event::Event;
use lb_common::forward::socket::{self, Call, Outcome};
use lb_common::scratch::Scratch;
use lb_common::tables::Tables as _;

use crate::kernel::Kernel;
use crate::maps::SOCKET_SCRATCH;

/// Goes on with the call.
const ALLOW: i32 = 1;
/// Fails the call with the value set before.
const DENY: i32 = 0;
/// `-ECONNREFUSED`.
const REFUSED: i32 = -111;
/// `-ENOBUFS`.
const NO_MEMORY: i32 = -105;

/// Family of the hook: which field of the context holds the address.
#[derive(Clone, Copy)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Asks the data path about a `connect` and writes its answer. A socket connects once.
#[inline(always)]
pub(crate) fn connect(
    context: &SockAddrContext,
    family: Family,
    decide: impl FnOnce(&mut Scratch, &Call) -> Outcome,
) -> i32 {
    handle(context, family, |call| {
        let outcome = with(context, |scratch| decide(scratch, call));
        give_back(context);
        outcome
    })
}

/// The same of a datagram. Whoever sends one sends more.
#[inline(always)]
pub(crate) fn send(
    context: &SockAddrContext,
    family: Family,
    decide: impl FnOnce(&mut Scratch, &Call) -> Outcome,
) -> i32 {
    handle(context, family, |call| with(context, |scratch| decide(scratch, call)))
}

#[inline(always)]
fn handle(
    context: &SockAddrContext,
    family: Family,
    decide: impl FnOnce(&Call) -> Option<Outcome>,
) -> i32 {
    let Some(call) = call(context, family) else {
        return ALLOW;
    };
    match decide(&call) {
        Some(Outcome::Leave) => ALLOW,
        Some(Outcome::Use(endpoint)) => {
            set(context.sock_addr, family, &endpoint);
            ALLOW
        }
        Some(Outcome::Refuse) => fail(REFUSED),
        None => fail(NO_MEMORY),
    }
}

/// Lends the call working memory of its socket, which stays with the socket unless it is given back. `None`, counted,
/// where there is none.
///
/// What an earlier call left in it is there still, as packets find what the one before left in that of their CPU. To make and to give
/// back takes 1.5 us and more, more than all else of a datagram's call.
///
/// The programs run for a process that stays on its CPU, but packets and other processes may come in between
/// (`bpf_prog_run_array_cg` disables migration only), so it cannot be the CPU's. Of one socket there is one call
/// at a time: the kernel holds its lock around each of these hooks.
#[inline(always)]
fn with(
    context: &SockAddrContext,
    decide: impl FnOnce(&mut Scratch) -> Outcome,
) -> Option<Outcome> {
    // SAFETY: the socket of the program's own context.
    let scratch = unsafe { SOCKET_SCRATCH.get_or_insert_ptr_mut(context, None) };
    // SAFETY: null, or memory of this socket, whose lock is held.
    let Some(scratch) = (unsafe { scratch.as_mut() }) else {
        Kernel.count(Event::SocketNoMemory);
        return None;
    };
    Some(decide(scratch))
}

/// Takes working memory back, of which nobody has a reference any more.
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "a place and its use: one access")]
fn give_back(context: &SockAddrContext) {
    // SAFETY: a field of the program's own context.
    let socket = unsafe { (*context.sock_addr).__bindgen_anon_1.sk };
    // SAFETY: the socket of the program's own context.
    let _there: Result<(), i32> = unsafe { SOCKET_SCRATCH.delete(socket) };
}

#[inline(always)]
fn fail(errno: i32) -> i32 {
    // SAFETY: the helper takes any errno; it is allowed at connect and sendmsg hooks.
    let _old: i32 = unsafe { bpf_set_retval(errno) };
    DENY
}

/// The same for hooks that may only change what the process is shown.
#[inline(always)]
pub(crate) fn show(
    context: &SockAddrContext,
    family: Family,
    decide: impl FnOnce(&mut Scratch, &Call) -> Outcome,
) -> i32 {
    if let Some(call) = call(context, family)
        && let Some(Outcome::Use(endpoint)) = with(context, |scratch| decide(scratch, &call))
    {
        set(context.sock_addr, family, &endpoint);
    }
    ALLOW
}

/// Shows a process the peer of its socket. Needs no working memory: `accept(2)` comes here, too.
#[inline(always)]
pub(crate) fn name(context: &SockAddrContext, family: Family) -> i32 {
    if let Some(call) = call(context, family)
        && let Outcome::Use(endpoint) = socket::peer_name(&Kernel, &call)
    {
        set(context.sock_addr, family, &endpoint);
    }
    ALLOW
}

/// What the call is about. `None` where it is left alone: for protocols that socket hooks do not serve, and network
/// namespaces that they are not for.
#[inline(always)]
fn call(context: &SockAddrContext, family: Family) -> Option<Call> {
    let address = context.sock_addr;
    // SAFETY: a field of the program's own context.
    let protocol = Protocol(unsafe { (*address).protocol } as u8);
    if protocol != Protocol::TCP && protocol != Protocol::UDP {
        return None;
    }
    // SAFETY: a field of the program's own context; the port lies in its first two bytes.
    let [a, b, ..] = unsafe { (*address).user_port }.to_ne_bytes();
    let call = Call {
        remote: Endpoint::new(ip(address, family), Port::from_wire([a, b])),
        protocol,
        // SAFETY: the helper takes the context of a socket address program.
        socket: unsafe { bpf_get_socket_cookie(context.as_ptr()) },
        // SAFETY: the helper takes the context of a socket address program.
        netns: unsafe { bpf_get_netns_cookie(context.as_ptr()) },
    };
    socket::is_served(&Kernel, &call).then_some(call)
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
