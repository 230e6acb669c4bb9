//! Turns a verdict into a program's return value, and counts it. No other place does.

use aya_ebpf::bindings::{BPF_F_INGRESS, TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action};
use aya_ebpf::helpers::generated::{bpf_redirect, bpf_redirect_neigh, bpf_redirect_peer};
use aya_log_ebpf::macro_support::{Level, level_enabled};
use aya_log_ebpf::{debug, trace};
use lb_common::addr::Ip;
use lb_common::event::{Hook, Redirect, Return, Verdict, verdict_counter};
use lb_common::forward::Role;

use crate::fib::FAMILIES;
use crate::kernel::add_one;

/// An interface index that no interface has.
const NOWHERE: u32 = i32::MAX as u32;

/// The direction of a tc program.
#[derive(Clone, Copy)]
pub(crate) enum TcDirection {
    Ingress,
    Egress,
    /// Ingress of an interface without a link-layer header: a tunnel may have many other ends, and a route decides
    /// which.
    L3Ingress,
}

/// The destination of a packet that a tc program sends.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The interface that the packet came by, or leaves by if it bypasses the stack.
    pub(crate) device: u32,
    /// Not 0: the packet goes to the peer of that interface, which is in a pod.
    pub(crate) to_peer: u32,
    /// The next hop of a packet of this host; unspecified where the kernel must find it.
    pub(crate) gateway: Ip,
}

impl Target {
    /// The interface itself, not its peer.
    #[inline(always)]
    pub(crate) const fn device(device: u32) -> Self {
        Self { device, to_peer: 0, gateway: Ip::UNSPECIFIED }
    }
}

/// The hooks of incoming and outgoing packets at an interface.
pub(crate) const fn hooks(role: Role) -> (Hook, Hook) {
    match role {
        Role::Pod => (Hook::PodIngress, Hook::PodEgress),
        Role::External => (Hook::ExternalIngress, Hook::ExternalEgress),
        Role::Host => (Hook::HostIngress, Hook::HostEgress),
    }
}

/// The return value of a tc program. A packet that is not dropped, returned or redirected goes to the next program.
///
/// It names every [`Return`] and [`Redirect`], so that a new one does not compile before its way out is written here.
#[inline(always)]
pub(crate) fn tc(hook: Hook, direction: TcDirection, target: Target, verdict: Verdict) -> i32 {
    let Target { device, to_peer, gateway } = target;
    let counter = verdict_counter(hook, verdict);
    add_one(counter);
    log(counter, device, verdict);
    match verdict {
        // `TC_ACT_OK` would end the chain before the programs of others (ARCHITECTURE.md, invariant 5).
        Verdict::Pass(_) | Verdict::Translated(_) => TC_ACT_UNSPEC,
        Verdict::Redirected(Redirect::FromHost) => to_neighbour(device, &gateway),
        // SAFETY: the helper only records where the packet is to go.
        Verdict::Redirected(Redirect::ToHost) => unsafe {
            bpf_redirect(device, u64::from(BPF_F_INGRESS)) as i32
        },
        // SAFETY: as above.
        Verdict::Redirected(Redirect::Forward | Redirect::Reply) if to_peer != 0 => unsafe {
            bpf_redirect_peer(device, 0) as i32
        },
        // SAFETY: as above.
        Verdict::Redirected(Redirect::Forward | Redirect::Reply) => unsafe {
            bpf_redirect(device, 0) as i32
        },
        // A drop on egress would reach a process that sends a datagram as an error (ENOBUFS); a redirect to an
        // interface that does not exist does not, like any other loss. SAFETY: as above; there is no interface of this
        // index.
        Verdict::Drop(_) if matches!(direction, TcDirection::Egress) => unsafe {
            bpf_redirect(NOWHERE, 0) as i32
        },
        Verdict::Drop(_) => TC_ACT_SHOT,
        Verdict::Returned(why) => {
            let flags = match why {
                // A held fragment comes in again.
                Return::Fragment => u64::from(BPF_F_INGRESS),
                Return::Hairpin
                | Return::Echo
                | Return::NoBackend
                | Return::UnknownPort
                | Return::TooBig => match direction {
                    // A packet of this host returns into the stack.
                    TcDirection::Egress => u64::from(BPF_F_INGRESS),
                    TcDirection::Ingress => 0,
                    TcDirection::L3Ingress => {
                        // SAFETY: as above; without parameters the kernel looks for the route.
                        return unsafe {
                            bpf_redirect_neigh(device, core::ptr::null_mut(), 0, 0) as i32
                        };
                    }
                },
            };
            // SAFETY: the helper only records where the packet is to go.
            unsafe { bpf_redirect(device, flags) as i32 }
        }
    }
}

/// Sends a packet out by an interface; the kernel resolves the link-layer address of the next hop.
///
/// Without the next hop the kernel looks up the route once more, and until 2025 it then lost the reference to the route
/// that the packet of a socket had (`__bpf_redirect_neigh_v4` in `net/core/filter.c`; mended in Linux 6.6.113, 6.12.54
/// and 6.17.4).
#[inline(always)]
fn to_neighbour(device: u32, gateway: &Ip) -> i32 {
    if *gateway == Ip::UNSPECIFIED {
        // SAFETY: the helper only records where the packet is to go (kernel 5.10).
        return unsafe { bpf_redirect_neigh(device, core::ptr::null_mut(), 0, 0) as i32 };
    }
    let [family4, family6] = FAMILIES.map(u32::from);
    let mut hop = if gateway.is_v4() {
        [family4, gateway.last_word(), 0, 0, 0]
    } else {
        let [a, b, c, d] = gateway.words();
        [family6, a, b, c, d]
    };
    let length = size_of_val(&hop) as i32;
    // SAFETY: as above; it reads `length` bytes, laid out as `struct bpf_redir_neigh`.
    unsafe { bpf_redirect_neigh(device, hop.as_mut_ptr().cast(), length, 0) as i32 }
}

/// The return value of the XDP program, with the same names as [`tc`]. `to`: the interface by which it sends a packet
/// out.
#[inline(always)]
pub(crate) fn xdp(hook: Hook, verdict: Verdict, to: u32) -> u32 {
    let counter = verdict_counter(hook, verdict);
    add_one(counter);
    log(counter, 0, verdict);
    match verdict {
        Verdict::Pass(_) | Verdict::Translated(_) => xdp_action::XDP_PASS,
        Verdict::Drop(_) => xdp_action::XDP_DROP,
        // XDP leaves rejections, pings and fragments to tc (`LeftToTc`): only a forged packet in the name of a pod that
        // reaches itself is returned here. All are named so that a new one does not compile before its return code is
        // written here.
        Verdict::Returned(
            Return::Hairpin
            | Return::Echo
            | Return::NoBackend
            | Return::Fragment
            | Return::UnknownPort
            | Return::TooBig,
        ) => xdp_action::XDP_TX,
        // Redirected to its own interface like to any other: a veth whose peer has no XDP program does not deliver
        // frames of `XDP_TX`.
        Verdict::Redirected(
            Redirect::Forward | Redirect::Reply | Redirect::FromHost | Redirect::ToHost,
        ) => {
            // SAFETY: the helper only records where the packet is to go.
            let code = unsafe { bpf_redirect(to, 0) };
            code.cast_unsigned() as u32
        }
    }
}

/// Logs how a packet ended, with the counter of its verdict: drops at debug, all others at trace.
///
/// The level is a constant of the loaded program (`lb-agent run --packet-log`), off by default: the verifier then
/// removes the call.
#[inline(always)]
fn log(counter: u32, device: u32, verdict: Verdict) {
    let (is_drop, level) = match verdict {
        Verdict::Drop(_) => (1, Level::Debug),
        Verdict::Pass(_)
        | Verdict::Translated(_)
        | Verdict::Returned(_)
        | Verdict::Redirected(_) => (0, Level::Trace),
    };
    if level_enabled(level) {
        write_log(counter, device, is_drop);
    }
}

#[inline(never)]
fn write_log(counter: u32, device: u32, is_drop: u32) {
    if is_drop != 0 {
        debug!((), "packet dropped: counter {} device {}", counter, device);
    } else {
        trace!((), "packet: counter {} device {}", counter, device);
    }
}
