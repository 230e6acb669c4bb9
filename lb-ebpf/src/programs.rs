//! The entry points: what the agent attaches to interfaces and cgroups. The stages behind them are in `stages`, with
//! the entry points of interfaces without a link-layer header, which are stages themselves.

use aya_ebpf::macros::{cgroup_sock_addr, classifier, xdp};
use aya_ebpf::programs::{SockAddrContext, TcContext, XdpContext};
use lb_common::event::{Hook, PassReason, Verdict};
use lb_common::flow::Side;
use lb_common::forward::{Role, Scratch, fast, socket, whole};
use lb_common::hook::Hooked as _;

use crate::frame::Frame;
use crate::kernel::{self, Kernel};
use crate::maps::{PATHS, XDP_PATHS};
use crate::report::{self, Target, TcDirection};
use crate::skb::Skb;
use crate::sock::{self, Family};
use crate::stages;

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

/// Packets from outside, before the stack. Optional: without it `external_ingress` translates all of them.
#[xdp]
pub(crate) fn external_xdp(context: XdpContext) -> u32 {
    let mut frame = Frame(&context);
    let verdict = with(|scratch| {
        fast::ingress(&mut frame, &Kernel, scratch, Role::External).unwrap_or_else(|| {
            let stage = whole::enter(scratch, Role::External, Side::INGRESS);
            stages::enter(&XDP_PATHS, &context, stage)
        })
    });
    // The fast path redirects no packet, so it names no interface.
    report::xdp(Hook::ExternalXdp, verdict, 0)
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
    let (ingress, egress) = report::hooks(role);
    (role, ingress, egress)
}

/// Packets that come in at tc.
#[inline(always)]
fn ingress<const AT: u8>(context: TcContext) -> i32 {
    let (role, hook, _) = const { hooks_at(AT) };
    let mut skb = Skb::new(&context);
    let target = Target::device(skb.device());
    let verdict = with(|scratch| {
        let decided = fast::ingress(&mut skb, &Kernel, scratch, role);
        decided.unwrap_or_else(|| whole_path(&context, scratch, role, Side::INGRESS))
    });
    report::tc(hook, TcDirection::Ingress, target, verdict)
}

/// Packets that go out at tc.
#[inline(always)]
fn egress<const AT: u8>(context: TcContext) -> i32 {
    let (role, _, hook) = const { hooks_at(AT) };
    let mut skb = Skb::new(&context);
    let target = Target::device(skb.device());
    let verdict = with(|scratch| {
        let decided = fast::egress(&mut skb, &Kernel, scratch, role);
        decided.unwrap_or_else(|| whole_path(&context, scratch, role, Side::EGRESS))
    });
    report::tc(hook, TcDirection::Egress, target, verdict)
}

/// Passes a packet to the whole path, which all roles share, so that the kernel verifies and stores it once.
#[inline(always)]
fn whole_path(context: &TcContext, scratch: &mut Scratch, role: Role, side: Side) -> Verdict {
    let stage = whole::enter(scratch, role, side);
    stages::enter(&PATHS, context, stage)
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
