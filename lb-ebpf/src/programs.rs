//! The entry points.

use aya_ebpf::macros::{cgroup_sock_addr, classifier, xdp};
use aya_ebpf::programs::{SockAddrContext, TcContext, XdpContext};
use lb_common::event::{DropReason, Hook, PassReason, Turn, Verdict};
use lb_common::forward::{self, Role, socket};
use lb_common::packet::Packet as _;
use lb_common::scratch::Scratch;

use crate::frame::Frame;
use crate::kernel::{self, Kernel};
use crate::mark;
use crate::report::{self, Direction};
use crate::skb::Skb;
use crate::sock::{self, Family};

/// Packets from a pod, on the host's side of its veth.
#[classifier]
pub(crate) fn pod_ingress(context: TcContext) -> i32 {
    ingress(&context, Hook::PodIngress, Role::Pod)
}

/// Packets to a pod, on the host's side of its veth.
#[classifier]
pub(crate) fn pod_egress(context: TcContext) -> i32 {
    let mut skb = Skb::new(&context);
    let verdict = with(|scratch| forward::egress(&mut skb, &Kernel, scratch, Role::Pod));
    report::tc(Hook::PodEgress, Direction::Egress, (skb.device(), 0), verdict)
}

/// Packets from outside.
#[classifier]
pub(crate) fn edge_ingress(context: TcContext) -> i32 {
    if mark::is_set(&context) {
        let verdict = Verdict::Pass(PassReason::Accelerated);
        return report::tc(Hook::EdgeIngress, Direction::Ingress, (0, 0), verdict);
    }
    ingress(&context, Hook::EdgeIngress, Role::Edge)
}

/// Packets to outside.
#[classifier]
pub(crate) fn edge_egress(context: TcContext) -> i32 {
    let mut skb = Skb::new(&context);
    let verdict = with(|scratch| forward::egress(&mut skb, &Kernel, scratch, Role::Edge));
    report::tc(Hook::EdgeEgress, Direction::Egress, (skb.device(), 0), verdict)
}

/// Packets from outside by a device without a link-layer header.
#[classifier]
pub(crate) fn bare_ingress(context: TcContext) -> i32 {
    let mut skb = Skb::bare(&context);
    let mut verdict = with(|scratch| forward::ingress(&mut skb, &Kernel, scratch, Role::Edge));
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
    let verdict = with(|scratch| forward::egress(&mut skb, &Kernel, scratch, Role::Edge));
    report::tc(Hook::EdgeEgress, Direction::Egress, (skb.device(), 0), verdict)
}

/// Packets from outside, before the stack: an accelerator of `edge_ingress`, never needed.
#[xdp]
pub(crate) fn edge_xdp(context: XdpContext) -> u32 {
    let mut frame = Frame(&context);
    let mut to = 0;
    let verdict = with(|scratch| {
        let verdict = forward::ingress(&mut frame, &Kernel, scratch, Role::Edge);
        if let Verdict::Sent(_) = verdict {
            to = scratch.route.device;
        }
        verdict
    });
    if let Verdict::Translated(_) = verdict {
        mark::set(&context);
    }
    report::xdp(Hook::EdgeXdp, verdict, to)
}

/// What comes in at tc.
#[inline(always)]
fn ingress(context: &TcContext, hook: Hook, role: Role) -> i32 {
    let mut skb = Skb::new(context);
    let mut way = (skb.device(), 0);
    let verdict = with(|scratch| {
        let verdict = forward::ingress(&mut skb, &Kernel, scratch, role);
        if let Verdict::Sent(_) = verdict {
            way = (scratch.route.device, scratch.enters);
        }
        verdict
    });
    report::tc(hook, Direction::Ingress, way, verdict)
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
