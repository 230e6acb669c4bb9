//! The stages of the whole path (ADR 0044).
//!
//! The agent attaches `l3_ingress` and `l3_egress`, the first stages at interfaces without a link-layer header. All
//! other programs here are attached nowhere: another program enters them by a tail call.

use aya_ebpf::EbpfContext;
use aya_ebpf::btf_maps::ProgramArray;
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use lb_common::event::{DropReason, Hook, PassReason, Return, Verdict};
use lb_common::flow::Side;
use lb_common::forward::{Exit, Role, Scratch, Stage, Step, whole};
use lb_common::hook::Hooked as _;
use lb_common::l3::L3;
use lb_common::route::Route;
use lb_common::tables::Node as _;

use crate::frame::Frame;
use crate::headers;
use crate::kernel::{self, Kernel};
use crate::maps::{L3_PATHS, PATHS, XDP_PATHS};
use crate::report::{self, Target, TcDirection};
use crate::skb::Skb;

/// Finds the flow of a packet that comes in, or its service.
#[classifier]
pub(crate) fn ingress_path(context: TcContext) -> i32 {
    tc(&context, Stage::Ingress)
}

/// Finds the flow of a packet that goes out, and follows it.
#[classifier]
pub(crate) fn egress_path(context: TcContext) -> i32 {
    tc(&context, Stage::Egress)
}

/// Follows a flow whose entries the packet changes.
#[classifier]
pub(crate) fn follow_path(context: TcContext) -> i32 {
    tc(&context, Stage::Follow)
}

/// Begins a flow: chooses the backend and writes the entries.
#[classifier]
pub(crate) fn begin_path(context: TcContext) -> i32 {
    tc(&context, Stage::Begin)
}

/// Finds the flow of a packet of this host, or its service.
#[classifier]
pub(crate) fn host_path(context: TcContext) -> i32 {
    tc(&context, Stage::Host)
}

/// Begins a flow of this host.
#[classifier]
pub(crate) fn host_begin_path(context: TcContext) -> i32 {
    tc(&context, Stage::HostBegin)
}

/// Handles ICMP messages and refused packets.
#[classifier]
pub(crate) fn error_path(context: TcContext) -> i32 {
    tc(&context, Stage::Error)
}

/// Packets from outside by an interface without a link-layer header. No fast path precedes this stage.
#[classifier]
pub(crate) fn l3_ingress(context: TcContext) -> i32 {
    if headers::has_outer_header(&context)
        && let Some(scratch) = kernel::scratch()
    {
        let target = Target::device(Skb::new(&context).device());
        // The data begin with an Ethernet header, so the stages of Ethernet continue (ADR 0022).
        let stage = whole::enter(scratch, Role::External, Side::INGRESS);
        let verdict = enter(&PATHS, &context, stage);
        return report::tc(Hook::ExternalIngress, TcDirection::Ingress, target, verdict);
    }
    l3(&context, Skb::l3(&context), Stage::Ingress)
}

/// Packets to outside by an interface without a link-layer header.
#[classifier]
pub(crate) fn l3_egress(context: TcContext) -> i32 {
    l3(&context, Skb::l3(&context), Stage::Egress)
}

/// As [`follow_path`], without a link-layer header.
#[classifier]
pub(crate) fn l3_follow_path(context: TcContext) -> i32 {
    l3(&context, Skb::l3_linear(&context), Stage::Follow)
}

/// As [`begin_path`], without a link-layer header.
#[classifier]
pub(crate) fn l3_begin_path(context: TcContext) -> i32 {
    l3(&context, Skb::l3_linear(&context), Stage::Begin)
}

/// As [`host_path`], without a link-layer header.
#[classifier]
pub(crate) fn l3_host_path(context: TcContext) -> i32 {
    l3(&context, Skb::l3_linear(&context), Stage::Host)
}

/// As [`host_begin_path`], without a link-layer header.
#[classifier]
pub(crate) fn l3_host_begin_path(context: TcContext) -> i32 {
    l3(&context, Skb::l3_linear(&context), Stage::HostBegin)
}

/// As [`error_path`], without a link-layer header.
#[classifier]
pub(crate) fn l3_error_path(context: TcContext) -> i32 {
    l3(&context, Skb::l3_linear(&context), Stage::Error)
}

/// As [`ingress_path`], before the stack.
#[xdp]
pub(crate) fn xdp_path(context: XdpContext) -> u32 {
    frame(&context, Stage::Ingress)
}

/// As [`follow_path`], before the stack.
#[xdp]
pub(crate) fn xdp_follow_path(context: XdpContext) -> u32 {
    frame(&context, Stage::Follow)
}

/// As [`begin_path`], before the stack.
#[xdp]
pub(crate) fn xdp_begin_path(context: XdpContext) -> u32 {
    frame(&context, Stage::Begin)
}

/// As [`error_path`], before the stack.
#[xdp]
pub(crate) fn xdp_error_path(context: XdpContext) -> u32 {
    frame(&context, Stage::Error)
}

/// The result of a stage without working memory, which every CPU has.
const NOT_READY: Step<Stage> = Err(Verdict::Pass(PassReason::NotReady));

/// Enters a stage. Returns only if the agent has not written its program to the array yet.
#[inline(always)]
pub(crate) fn enter<const N: usize>(
    array: &ProgramArray<N>,
    context: &impl EbpfContext,
    stage: Stage,
) -> Verdict {
    // SAFETY: no value of this program needs to be dropped, and the verdict is the other program's.
    unsafe { array.tail_call(context, stage.index()) };
    // The limit of the kernel (`MAX_TAIL_CALL_CNT`, 33 in a row) is never met: a packet enters four stages at most.
    Verdict::Pass(PassReason::NotReady)
}

/// Enters the stage after one that has run, or returns the verdict of that one.
#[inline(always)]
fn enter_next<const N: usize>(
    array: &ProgramArray<N>,
    context: &impl EbpfContext,
    done: Step<Stage>,
) -> Verdict {
    match done {
        Ok(next) => enter(array, context, next),
        Err(verdict) => verdict,
    }
}

/// The direction of a packet in a stage. Constant for stages of one direction.
#[inline(always)]
fn side(stage: Stage, scratch: &Scratch) -> Side {
    stage.side().unwrap_or(scratch.headers.key.side)
}

/// Runs a stage at tc.
///
/// VERIFIER: only the program itself may enter the next stage, so none of this is in a closure, which might become a
/// function.
#[inline(always)]
fn tc(context: &TcContext, stage: Stage) -> i32 {
    let mut skb = Skb::linear(context);
    let mut target = Target::device(skb.device());
    let (mut role, mut comes_in) = (Role::default(), true);
    let mut done = NOT_READY;
    if let Some(scratch) = kernel::scratch() {
        (role, comes_in) = (scratch.role, side(stage, scratch) == Side::INGRESS);
        done = whole::run(stage, &mut skb, &Kernel, scratch);
        if let Err(Verdict::Redirected(_)) = done {
            let Exit { route, to_peer, .. } = &scratch.exit;
            target = Target { gateway: route.gateway, ..Target::device(route.device) };
            // `bpf_redirect_peer` works at ingress only, and at egress the field is that of an earlier packet.
            if comes_in {
                target.to_peer = *to_peer;
            }
        }
    }
    let verdict = enter_next(&PATHS, context, done);
    let (ingress, egress) = report::hooks(role);
    if comes_in {
        report::tc(ingress, TcDirection::Ingress, target, verdict)
    } else {
        report::tc(egress, TcDirection::Egress, target, verdict)
    }
}

/// Runs a stage at an interface without a link-layer header, which is always an external one.
#[inline(always)]
fn l3(context: &TcContext, mut skb: L3<Skb<'_>>, stage: Stage) -> i32 {
    let mut target = Target::device(skb.device());
    let mut comes_in = true;
    let mut done = NOT_READY;
    if let Some(scratch) = kernel::scratch() {
        // These two are attached themselves, so no program before them has written role and side.
        if let (Stage::Ingress | Stage::Egress, Some(side)) = (stage, stage.side()) {
            let _this: Stage = whole::enter(scratch, Role::External, side);
        }
        comes_in = side(stage, scratch) == Side::INGRESS;
        done = whole::run(stage, &mut skb, &Kernel, scratch);
        // A packet that returns into the stack needs no header.
        if let Err(verdict) = done
            && (comes_in || !matches!(verdict, Verdict::Returned(_)))
        {
            done = Err(finish_l3(&mut skb.0, scratch, verdict, &mut target));
        }
    }
    let verdict = enter_next(&L3_PATHS, context, done);
    if comes_in {
        // The kind of an interface is no hook of its own in the counters (ADR 0022).
        report::tc(Hook::ExternalIngress, TcDirection::L3Ingress, target, verdict)
    } else {
        report::tc(Hook::ExternalEgress, TcDirection::Egress, target, verdict)
    }
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
        // `bpf_redirect_neigh` writes the addresses of the next hop (ADR 0022).
        Verdict::Returned(_) => [0; 6],
        Verdict::Redirected(_) => {
            let Route { device, gateway, .. } = scratch.exit.route;
            *target = Target { gateway, ..Target::device(device) };
            Kernel.device(scratch.exit.route.device).map_or([0; 6], |device| device.hardware)
        }
    };
    match skb.lay_link(to) {
        Some(()) => verdict,
        None => Verdict::Drop(DropReason::RewriteFailed),
    }
}

/// Runs a stage before the stack.
#[inline(always)]
fn frame(context: &XdpContext, stage: Stage) -> u32 {
    let mut frame = Frame(context);
    let mut to = 0;
    let mut done = NOT_READY;
    if let Some(scratch) = kernel::scratch() {
        done = whole::run(stage, &mut frame, &Kernel, scratch);
        if let Err(Verdict::Redirected(_)) = done {
            to = scratch.exit.route.device;
        }
    }
    report::xdp(Hook::ExternalXdp, enter_next(&XDP_PATHS, context, done), to)
}
