//! Making and following flows. Their two halves are made together or not at all.

use super::ports::{self, Place};
use crate::addr::{Ip, Protocol};
use crate::config::Settings;
use crate::event::{DropReason, Event};
use crate::flow::{Flow, FlowKey, Kind, Side, Tuple, state};
use crate::scratch::{Scratch, Turned};
use crate::tables::{Added, Tables};
use crate::wire::{View, tcp};

/// What a packet adds to the state of its half.
#[inline(always)]
pub(super) const fn shown(view: &View) -> u8 {
    if view.protocol.0 != Protocol::TCP.0 {
        return state::ESTABLISHED;
    }
    if view.tcp_flags & tcp::RST != 0 {
        return state::RST;
    }
    let fin = if view.tcp_flags & tcp::FIN != 0 { state::FIN } else { 0 };
    let established = if view.is_syn() { 0 } else { state::ESTABLISHED };
    fin | established
}

/// Marks a packet's half as seen, once a tick or when its state moves: the clock itself is asked only then.
#[inline(always)]
pub(super) fn touch<T: Tables>(tables: &T, key: &FlowKey, flow: &Flow, view: &View) {
    let state = flow.state | shown(view);
    let tick = tables.tick();
    if state != flow.state || tick != flow.tick() {
        tables.touch_flow(key, Flow::seen_at(tables.now(), tick), state);
    }
}

/// Whether a packet that neither begins nor ends anything leaves nothing to be marked in its half, nor the half to be removed.
#[inline(always)]
pub(super) fn is_settled<T: Tables>(tables: &T, flow: &Flow) -> bool {
    flow.state == state::ESTABLISHED && flow.tick() == tables.tick()
}

/// Whether a packet may follow the flow found for it without another look at its frontend.
/// `is_answer`: its destination can only be a source that we made up.
///
/// A TCP connection goes on whatever becomes of its frontend. Of UDP and SCTP neither the backend may have left,
/// nor any frontend since this one was looked up: else see [`still_good`].
#[inline(always)]
pub(super) fn is_current<T: Tables>(
    tables: &T,
    settings: &Settings,
    flow: &Flow,
    view: &View,
    is_answer: bool,
) -> bool {
    if is_answer && matches!(flow.kind, Kind::UNMASQUERADE | Kind::HAIRPIN) {
        return true;
    }
    if flow.kind == Kind::UNMASQUERADE {
        return false;
    }
    if view.protocol == Protocol::TCP {
        return !view.is_syn();
    }
    flow.note == settings.removals && tables.epoch(flow.backend) == flow.epoch
}

/// Whether a packet may follow the flow found for it, or must pick again: UDP and SCTP whose backend
/// or service left; TCP only when a SYN reuses the tuple or finds its backend gone.
#[inline(always)]
pub(super) fn still_good<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> bool {
    if scratch.view.protocol == Protocol::TCP {
        if !scratch.view.is_syn() {
            return true;
        }
        if scratch.flow.state != 0 || !has_reply(tables, scratch) {
            tables.count(Event::FlowReused);
            return false;
        }
    }
    let flow = &scratch.flow;
    let live = is_live(tables, flow, scratch.service.id);
    if !live {
        tables.count(Event::FlowRenewed);
    } else if flow.note != settings.removals {
        tables.confirm_flow(&scratch.key, settings.removals);
    }
    live
}

/// Whether the reply of a flow is still its own: that of a connection that was reset may be another's by now
/// ([`ports::reserve`]).
#[inline(never)]
fn has_reply<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    scratch.key.write_other(&scratch.flow, &mut scratch.twin_key);
    tables.flow(&scratch.twin_key, &mut scratch.other)
        && scratch.other.to.is_reverse_of(&scratch.key.tuple)
}

/// Whether the backend of a flow still serves the service it was chosen for.
#[inline(always)]
pub(super) fn is_live<T: Tables>(tables: &T, flow: &Flow, service: u32) -> bool {
    flow.service == service && tables.epoch(flow.backend) == flow.epoch
}

/// Makes both halves of the flow of `scratch.key` (and the mark of its masquerade) as `scratch.begin` says, the forward
/// half last, into `scratch.flow`.
#[inline(never)]
pub(super) fn begin<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<(), DropReason> {
    let itself =
        scratch.begin.turn == Turned::Itself && scratch.backend.ip == scratch.key.tuple.source;
    let hairpin = itself || scratch.begin.turn == Turned::Host;
    let kind = if hairpin { Kind::HAIRPIN } else { Kind::FORWARD };
    scratch.flow.to = scratch.key.tuple;
    scratch.flow.kind = kind;
    scratch.flow.seen = scratch.begin.now;
    scratch.flow.to.destination = scratch.backend.ip;
    scratch.flow.to.destination_port = scratch.backend.port;
    if hairpin {
        let v4 = scratch.backend.ip.is_v4();
        scratch.flow.to.source =
            if itself { hairpin_address(settings, v4) } else { host_address(settings, v4) };
    }
    if scratch.begin.port_stays
        && scratch.flow.to.destination_port != scratch.key.tuple.destination_port
    {
        return Err(DropReason::SctpChecksum);
    }
    scratch.flow.service = scratch.service.id;
    scratch.flow.backend = scratch.backend_id;
    scratch.flow.epoch = scratch.backend.epoch;
    scratch.flow.note = settings.removals;
    scratch.flow.state = scratch.begin.state;
    scratch.flow.flags = if scratch.begin.masquerade { Flow::MASQUERADED } else { 0 };
    scratch.key.write_other(&scratch.flow, &mut scratch.twin_key);
    let twin_kind = if hairpin { Kind::HAIRPIN } else { Kind::REPLY };
    scratch.flow.write_half(twin_kind, &mut scratch.twin);
    scratch.key.tuple.write_reversed(&mut scratch.twin.to);
    scratch.twin.note = scratch.begin.device;

    // What another packet of this flow made stays with it.
    let place = ports::reserve(tables, settings, scratch, scratch.begin.port_stays)?;
    let mut stands = true;
    if scratch.begin.masquerade {
        write_masquerade(scratch);
        stands = tables.put_flow(&scratch.twin_key, &scratch.twin);
    }
    // What the tuple meant before, if anything: a flow that is renewed.
    let old = tables.flow(&scratch.key, &mut scratch.twin) && scratch.twin.to != scratch.flow.to;
    if !stands || !tables.put_flow(&scratch.key, &scratch.flow) {
        if place == Place::Made {
            take_back(tables, scratch, scratch.begin.device);
        }
        return Err(DropReason::FlowTableFull);
    }
    if old {
        end_old(tables, scratch);
    }
    if place == Place::Made { Ok(()) } else { complete(tables, scratch, scratch.begin.device) }
}

/// Ends what is left of the flow that `scratch.key` meant before, which is in `scratch.twin`. Where another flow has taken
/// its reply over ([`ports::reserve`]), nothing is: the masquerade beside that is the other's too.
#[inline(always)]
fn end_old<T: Tables>(tables: &T, scratch: &mut Scratch) {
    scratch.key.write_other(&scratch.twin, &mut scratch.twin_key);
    let is_anothers = tables.flow(&scratch.twin_key, &mut scratch.other)
        && !scratch.other.to.is_reverse_of(&scratch.key.tuple);
    if !is_anothers {
        end_tail(tables, scratch);
    }
}

/// Writes the half that has the source of `scratch.flow` become ours, into `scratch.twin`.
#[inline(always)]
const fn write_masquerade(scratch: &mut Scratch) {
    scratch.flow.write_half(Kind::MASQUERADE, &mut scratch.twin);
    scratch.twin.to = Tuple::NONE;
    scratch.key.write_mark(&scratch.flow, &mut scratch.twin_key);
}

/// Takes back what was made for a forward half that found no room. Where another CPU has put that half meanwhile, it
/// counts on them: then they stand again.
#[inline(never)]
fn take_back<T: Tables>(tables: &T, scratch: &mut Scratch, device: u32) {
    scratch.twin = scratch.flow;
    end_tail(tables, scratch);
    if tables.flow(&scratch.key, &mut scratch.twin) && scratch.twin.to == scratch.flow.to {
        let _gone: Result<(), DropReason> = complete(tables, scratch, device);
    }
}

/// Adds the halves beside a forward one whose maker may have taken them back before it stood, or takes it away again.
///
/// Whoever removes them looks for the forward half afterwards, whoever puts that looks for them afterwards: one of the
/// two sees the other.
#[inline(never)]
fn complete<T: Tables>(tables: &T, scratch: &mut Scratch, device: u32) -> Result<(), DropReason> {
    let is_hairpin = scratch.flow.kind == Kind::HAIRPIN;
    let kind = if is_hairpin { Kind::HAIRPIN } else { Kind::REPLY };
    scratch.flow.write_half(kind, &mut scratch.twin);
    scratch.twin.note = device;
    scratch.key.tuple.write_reversed(&mut scratch.twin.to);
    scratch.key.write_other(&scratch.flow, &mut scratch.twin_key);
    let mut stands = matches!(ports::stand(tables, scratch), Ok(Place::Made | Place::Found));
    if stands && scratch.flow.flags & Flow::MASQUERADED != 0 {
        write_masquerade(scratch);
        stands = tables.add_flow(&scratch.twin_key, &scratch.twin) != Added::Full;
    }
    if stands {
        return Ok(());
    }
    tables.remove_flow(&scratch.key);
    Err(DropReason::FlowTableFull)
}

/// The address that stands for a pod that reaches itself.
#[inline(always)]
pub(super) const fn hairpin_address(settings: &Settings, v4: bool) -> Ip {
    if v4 { settings.hairpin4 } else { settings.hairpin6 }
}

/// The address that stands for this host, where its own packets are turned round: beside the one that stands for a
/// pod, since both may talk to one backend from one port.
#[inline(always)]
pub(super) const fn host_address(settings: &Settings, v4: bool) -> Ip {
    let [first, second, third, last] = hairpin_address(settings, v4).words();
    Ip::from_words([first, second, third, last ^ u32::from_ne_bytes([0, 0, 0, 4])])
}

/// Removes all halves that belong to `scratch.key` as it was in `scratch.twin`, but the forward one. Its reply comes last:
/// who makes it anew makes the others after that.
#[inline(never)]
pub(super) fn end_tail<T: Tables>(tables: &T, scratch: &mut Scratch) {
    if scratch.twin.flags & Flow::MASQUERADED != 0 {
        scratch.key.write_mark(&scratch.twin, &mut scratch.twin_key);
        if tables.flow(&scratch.twin_key, &mut scratch.other) {
            tables.remove_flow(&scratch.twin_key);
            if scratch.other.to.source != Ip::UNSPECIFIED {
                scratch.other.to.write_reversed(&mut scratch.twin_key.tuple);
                scratch.twin_key.side = Side::INGRESS;
                tables.remove_flow(&scratch.twin_key);
            }
        }
    }
    scratch.key.write_other(&scratch.twin, &mut scratch.twin_key);
    tables.remove_flow(&scratch.twin_key);
}
