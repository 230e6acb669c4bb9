//! The entry points.

use aya_ebpf::macros::{cgroup_sock_addr, classifier, xdp};
use aya_ebpf::programs::{SockAddrContext, TcContext, XdpContext};
use lb_common::event::{DropReason, Hook, PassReason, Turn, Verdict};
use lb_common::forward::{Role, fast, socket, whole};
use lb_common::packet::Packet as _;
use lb_common::scratch::Scratch;

use crate::frame::Frame;
use crate::kernel::{self, Kernel};
use crate::report::{self, Direction};
use crate::skb::Skb;
use crate::sock::{self, Family};

/// Packets from a pod, on the host's side of its veth.
#[classifier]
pub(crate) fn pod_ingress(context: TcContext) -> i32 {
    ingress::<false>(context)
}

/// Packets to a pod, on the host's side of its veth.
#[classifier]
pub(crate) fn pod_egress(context: TcContext) -> i32 {
    egress::<false>(context)
}

/// Packets from outside.
#[classifier]
pub(crate) fn edge_ingress(context: TcContext) -> i32 {
    ingress::<true>(context)
}

/// Packets to outside.
#[classifier]
pub(crate) fn edge_egress(context: TcContext) -> i32 {
    egress::<true>(context)
}

/// Packets from outside by a device without a link-layer header.
#[classifier]
pub(crate) fn bare_ingress(context: TcContext) -> i32 {
    let mut skb = Skb::bare(&context);
    let mut verdict = with(|scratch| whole::ingress(&mut skb, &Kernel, scratch, Role::Edge));
    if let Verdict::TurnedRound(why) = verdict
        && why != Turn::Fragment
        && skb.0.lay_link().is_none()
    {
        verdict = Verdict::Drop(DropReason::RewriteFailed);
    }
    report::tc(Hook::EdgeIngress, Direction::BareIngress, (skb.device(), 0), verdict)
}

/// Packets to outside by such a device.
#[classifier]
pub(crate) fn bare_egress(context: TcContext) -> i32 {
    let mut skb = Skb::bare(&context);
    let verdict = with(|scratch| whole::egress(&mut skb, &Kernel, scratch, Role::Edge));
    report::tc(Hook::EdgeEgress, Direction::Egress, (skb.device(), 0), verdict)
}

/// Packets from outside, before the stack: an accelerator of `edge_ingress`, never needed.
#[xdp]
pub(crate) fn edge_xdp(context: XdpContext) -> u32 {
    let mut frame = Frame(&context);
    let decided = kernel::scratch()
        .and_then(|scratch| fast::ingress(&mut frame, &Kernel, scratch, Role::Edge));
    match decided {
        Some(verdict) => report::xdp(Hook::EdgeXdp, verdict, 0),
        None => rest_of_xdp(context),
    }
}

#[inline(never)]
fn rest_of_xdp(context: XdpContext) -> u32 {
    let mut frame = Frame(&context);
    let mut to = 0;
    let verdict = with(|scratch| {
        let verdict = whole::ingress(&mut frame, &Kernel, scratch, Role::Edge);
        if let Verdict::Sent(_) = verdict {
            to = scratch.route.device;
        }
        verdict
    });
    report::xdp(Hook::EdgeXdp, verdict, to)
}

/// What a program sits on.
const fn role(edge: bool) -> Role {
    if edge { Role::Edge } else { Role::Pod }
}

/// What comes in at tc.
#[inline(always)]
fn ingress<const EDGE: bool>(context: TcContext) -> i32 {
    let mut skb = Skb::new(&context);
    let way = (skb.device(), 0);
    let decided =
        kernel::scratch().and_then(|scratch| fast::ingress(&mut skb, &Kernel, scratch, role(EDGE)));
    match decided {
        Some(verdict) => report::tc(coming(EDGE), Direction::Ingress, way, verdict),
        None => rest_of_ingress::<EDGE>(context),
    }
}

#[inline(never)]
fn rest_of_ingress<const EDGE: bool>(context: TcContext) -> i32 {
    let mut skb = Skb::new(&context);
    let mut way = (skb.device(), 0);
    let verdict = with(|scratch| {
        let verdict = whole::ingress(&mut skb, &Kernel, scratch, role(EDGE));
        if let Verdict::Sent(_) = verdict {
            way = (scratch.route.device, scratch.enters);
        }
        verdict
    });
    report::tc(coming(EDGE), Direction::Ingress, way, verdict)
}

const fn coming(edge: bool) -> Hook {
    if edge { Hook::EdgeIngress } else { Hook::PodIngress }
}

/// What goes out at tc.
#[inline(always)]
fn egress<const EDGE: bool>(context: TcContext) -> i32 {
    let mut skb = Skb::new(&context);
    let way = (skb.device(), 0);
    let decided =
        kernel::scratch().and_then(|scratch| fast::egress(&mut skb, &Kernel, scratch, role(EDGE)));
    match decided {
        Some(verdict) => report::tc(going(EDGE), Direction::Egress, way, verdict),
        None => rest_of_egress::<EDGE>(context),
    }
}

#[inline(never)]
fn rest_of_egress<const EDGE: bool>(context: TcContext) -> i32 {
    let mut skb = Skb::new(&context);
    let verdict = with(|scratch| whole::egress(&mut skb, &Kernel, scratch, role(EDGE)));
    report::tc(going(EDGE), Direction::Egress, (skb.device(), 0), verdict)
}

const fn going(edge: bool) -> Hook {
    if edge { Hook::EdgeEgress } else { Hook::PodEgress }
}

/// Lends a program the working memory of its CPU.
#[inline(always)]
fn with(handle: impl FnOnce(&mut Scratch) -> Verdict) -> Verdict {
    kernel::scratch().map_or(Verdict::Pass(PassReason::NotReady), handle)
}

/// Socket hooks: one pair, IPv4 and IPv6, for each call.
macro_rules! socket_hooks {
    ($($name4:ident, $name6:ident, $hook4:ident, $hook6:ident, $with:path, $decide:path;)*) => {$(
        #[cgroup_sock_addr($hook4)]
        pub(crate) fn $name4(context: SockAddrContext) -> i32 {
            $with(&context, Family::V4, |scratch, call| $decide(&Kernel, scratch, call))
        }

        #[cgroup_sock_addr($hook6)]
        pub(crate) fn $name6(context: SockAddrContext) -> i32 {
            $with(&context, Family::V6, |scratch, call| $decide(&Kernel, scratch, call))
        }
    )*};
}

socket_hooks! {
    connect4, connect6, connect4, connect6, sock::connect, socket::connect;
    sendmsg4, sendmsg6, sendmsg4, sendmsg6, sock::send, socket::send;
    recvmsg4, recvmsg6, recvmsg4, recvmsg6, sock::show, socket::receive;
}

/// Whom a socket of IPv4 is connected to.
#[cgroup_sock_addr(getpeername4)]
pub(crate) fn peername4(context: SockAddrContext) -> i32 {
    sock::name(&context, Family::V4)
}

/// Whom a socket of IPv6 is connected to.
#[cgroup_sock_addr(getpeername6)]
pub(crate) fn peername6(context: SockAddrContext) -> i32 {
    sock::name(&context, Family::V6)
}
