//! The entry points.

use aya_ebpf::macros::{cgroup_sock_addr, classifier, xdp};
use aya_ebpf::programs::{SockAddrContext, TcContext, XdpContext};
use lb_common::event::{DropReason, Hook, PassReason, Return, Verdict};
use lb_common::forward::{Exit, Role, Scratch, fast, socket, whole};
use lb_common::hook::Hooked as _;
use lb_common::tables::Node as _;

use crate::frame::Frame;
use crate::kernel::{self, Kernel};
use crate::maps::{PATHS, XDP_PATH};
use crate::report::{self, Direction, Target};
use crate::skb::Skb;
use crate::sock::{self, Family};

/// Packets from a pod, on the host's side of its veth.
#[classifier]
pub(crate) fn pod_ingress(context: TcContext) -> i32 {
    ingress::<POD>(context)
}

/// Packets to a pod, on the host's side of its veth.
#[classifier]
pub(crate) fn pod_egress(context: TcContext) -> i32 {
    egress::<POD>(context)
}

/// Packets from outside.
#[classifier]
pub(crate) fn external_ingress(context: TcContext) -> i32 {
    ingress::<EXTERNAL>(context)
}

/// Packets to outside.
#[classifier]
pub(crate) fn external_egress(context: TcContext) -> i32 {
    egress::<EXTERNAL>(context)
}

/// Packets of this host to itself, where it receives them.
#[classifier]
pub(crate) fn host_ingress(context: TcContext) -> i32 {
    ingress::<HOST>(context)
}

/// Packets of this host to itself, where it sends them.
#[classifier]
pub(crate) fn host_egress(context: TcContext) -> i32 {
    egress::<HOST>(context)
}

/// Packets from outside by an interface without a link-layer header.
#[classifier]
pub(crate) fn l3_ingress(context: TcContext) -> i32 {
    let mut skb = Skb::l3(&context);
    let mut target = Target::device(skb.device());
    let verdict = with(|scratch| {
        let verdict = whole::ingress(&mut skb, &Kernel, scratch, Role::External);
        finish_l3(&mut skb.0, scratch, verdict, &mut target)
    });
    report::tc(Hook::ExternalIngress, Direction::L3Ingress, target, verdict)
}

/// Packets to outside by an interface without a link-layer header.
#[classifier]
pub(crate) fn l3_egress(context: TcContext) -> i32 {
    let mut skb = Skb::l3(&context);
    let mut target = Target::device(skb.device());
    let verdict = with(|scratch| {
        let verdict = whole::egress(&mut skb, &Kernel, scratch, Role::External);
        // A packet that returns into the stack needs no header.
        if matches!(verdict, Verdict::Returned(_)) {
            verdict
        } else {
            finish_l3(&mut skb.0, scratch, verdict, &mut target)
        }
    });
    report::tc(Hook::ExternalEgress, Direction::Egress, target, verdict)
}

/// Adds the link-layer header to a packet that leaves its interface for another one, or that is returned.
#[inline(always)]
fn finish_l3(
    skb: &mut Skb<'_>,
    scratch: &Scratch,
    verdict: Verdict,
    target: &mut Target,
) -> Verdict {
    let to = match verdict {
        Verdict::Returned(Return::Fragment)
        | Verdict::Pass(_)
        | Verdict::Translated(_)
        | Verdict::Drop(_) => return verdict,
        Verdict::Returned(_) => [0; 6],
        Verdict::Redirected(_) => {
            *target = Target::device(scratch.exit.route.device);
            Kernel.device(scratch.exit.route.device).map_or([0; 6], |device| device.hardware)
        }
    };
    match skb.lay_link(to) {
        Some(()) => verdict,
        None => Verdict::Drop(DropReason::RewriteFailed),
    }
}

/// Packets from outside, before the stack. Optional: without it `external_ingress` translates all of them.
#[xdp]
pub(crate) fn external_xdp(context: XdpContext) -> u32 {
    let mut frame = Frame(&context);
    let verdict = with(|scratch| {
        fast::ingress(&mut frame, &Kernel, scratch, Role::External).unwrap_or_else(|| {
            // SAFETY: no value of this program needs to be dropped, and the verdict is the other program's.
            unsafe { XDP_PATH.tail_call(&context, 0) };
            Verdict::Pass(PassReason::NotReady)
        })
    });
    report::xdp(Hook::ExternalXdp, verdict, 0)
}

/// The whole path of packets before the stack, reached from `external_xdp`.
#[xdp]
pub(crate) fn xdp_path(context: XdpContext) -> u32 {
    let mut frame = Frame(&context);
    let mut to = 0;
    let verdict = with(|scratch| {
        let verdict = whole::ingress(&mut frame, &Kernel, scratch, Role::External);
        if let Verdict::Redirected(_) = verdict {
            to = scratch.exit.route.device;
        }
        verdict
    });
    report::xdp(Hook::ExternalXdp, verdict, to)
}

/// The three places of tc programs, as constants of their functions.
const POD: u8 = 0;
const EXTERNAL: u8 = 1;
const HOST: u8 = 2;

/// The role of the interface at a place, and the hooks of incoming and outgoing packets there.
const fn hooks_at(at: u8) -> (Role, Hook, Hook) {
    let role = match at {
        POD => Role::Pod,
        EXTERNAL => Role::External,
        _ => Role::Host,
    };
    let (ingress, egress) = hooks(role);
    (role, ingress, egress)
}

/// The hooks of incoming and outgoing packets at an interface.
const fn hooks(role: Role) -> (Hook, Hook) {
    match role {
        Role::Pod => (Hook::PodIngress, Hook::PodEgress),
        Role::External => (Hook::ExternalIngress, Hook::ExternalEgress),
        Role::Host => (Hook::HostIngress, Hook::HostEgress),
    }
}

/// Packets that come in at tc.
#[inline(always)]
fn ingress<const AT: u8>(context: TcContext) -> i32 {
    let (role, hook, _) = const { hooks_at(AT) };
    let mut skb = Skb::new(&context);
    let target = Target::device(skb.device());
    let verdict = with(|scratch| {
        let decided = fast::ingress(&mut skb, &Kernel, scratch, role);
        decided.unwrap_or_else(|| whole_path(&context, scratch, role, INGRESS_PATH))
    });
    report::tc(hook, Direction::Ingress, target, verdict)
}

/// Packets that go out at tc.
#[inline(always)]
fn egress<const AT: u8>(context: TcContext) -> i32 {
    let (role, _, hook) = const { hooks_at(AT) };
    let mut skb = Skb::new(&context);
    let target = Target::device(skb.device());
    let verdict = with(|scratch| {
        let decided = fast::egress(&mut skb, &Kernel, scratch, role);
        decided.unwrap_or_else(|| whole_path(&context, scratch, role, EGRESS_PATH))
    });
    report::tc(hook, Direction::Egress, target, verdict)
}

/// Indices of the whole path's programs in `PATHS`.
const INGRESS_PATH: u32 = 0;
const EGRESS_PATH: u32 = 1;

/// Passes a packet to the whole path, which all roles share, so that the kernel verifies and stores it once. Returns
/// only if the agent has not written `PATHS` yet.
#[inline(always)]
fn whole_path(context: &TcContext, scratch: &mut Scratch, role: Role, path: u32) -> Verdict {
    scratch.role = role;
    // SAFETY: no value of this program needs to be dropped, and the verdict is the other program's.
    unsafe { PATHS.tail_call(context, path) };
    Verdict::Pass(PassReason::NotReady)
}

/// The whole path of packets that come in, reached from the program of each role.
#[classifier]
pub(crate) fn ingress_path(context: TcContext) -> i32 {
    let mut skb = Skb::linear(&context);
    let mut target = Target::device(skb.device());
    let mut role = Role::default();
    let verdict = with(|scratch| {
        role = scratch.role;
        let verdict = whole::ingress(&mut skb, &Kernel, scratch, role);
        if let Verdict::Redirected(_) = verdict {
            let Exit { route, to_peer, .. } = &scratch.exit;
            target = Target { device: route.device, to_peer: *to_peer };
        }
        verdict
    });
    report::tc(hooks(role).0, Direction::Ingress, target, verdict)
}

/// The whole path of packets that go out.
#[classifier]
pub(crate) fn egress_path(context: TcContext) -> i32 {
    let mut skb = Skb::linear(&context);
    let mut target = Target::device(skb.device());
    let mut role = Role::default();
    let verdict = with(|scratch| {
        role = scratch.role;
        let verdict = whole::egress(&mut skb, &Kernel, scratch, role);
        if let Verdict::Redirected(_) = verdict {
            target = Target::device(scratch.exit.route.device);
        }
        verdict
    });
    report::tc(hooks(role).1, Direction::Egress, target, verdict)
}

/// Passes the working memory of the CPU to a program.
#[inline(always)]
fn with(handle: impl FnOnce(&mut Scratch) -> Verdict) -> Verdict {
    kernel::scratch().map_or(Verdict::Pass(PassReason::NotReady), handle)
}

/// TCP sockets of IPv4 that connect.
#[cgroup_sock_addr(connect4)]
pub(crate) fn connect4(context: SockAddrContext) -> i32 {
    sock::connect(&context, Family::V4, |choice, call, named| {
        socket::connect(&Kernel, choice, call, named)
    })
}

/// TCP sockets of IPv6 that connect.
#[cgroup_sock_addr(connect6)]
pub(crate) fn connect6(context: SockAddrContext) -> i32 {
    sock::connect(&context, Family::V6, |choice, call, named| {
        socket::connect(&Kernel, choice, call, named)
    })
}

/// The peer address that a socket of IPv4 reports.
#[cgroup_sock_addr(getpeername4)]
pub(crate) fn peername4(context: SockAddrContext) -> i32 {
    sock::name(&context, Family::V4)
}

/// The peer address that a socket of IPv6 reports.
#[cgroup_sock_addr(getpeername6)]
pub(crate) fn peername6(context: SockAddrContext) -> i32 {
    sock::name(&context, Family::V6)
}
