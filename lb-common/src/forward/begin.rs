//! Making flows.

use super::parts::end;
use super::ports::{self, Reservation};
use super::{choose, fragments};
use crate::addr::Ip;
use crate::config::Settings;
use crate::event::{DropReason, PassReason, Verdict};
use crate::flow::{Flow, Kind, Side, Tuple};
use crate::scratch::Scratch;
use crate::tables::Tables;

/// Writes the forward entry of the flow of `scratch.key` that begins as `scratch.begin` says into `scratch.flow`, and its reply
/// into `scratch.opposite`. Until both ends have spoken its entries may be displaced ([`super::tiers`]).
#[inline(always)]
pub(super) fn prepare<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    let Some(settings) = tables.settings() else {
        return end(scratch, Verdict::Pass(PassReason::NotReady));
    };
    // The old reply must go before the new one is reserved: it may have the very same key.
    if scratch.begin.renews {
        end_old(tables, scratch);
    }
    write_forward(settings, scratch);
    let is_hosts = !scratch.begin.source.is_unspecified();
    let keeps_port = scratch.flow.to.destination_port == scratch.key.tuple.destination_port;
    if scratch.begin.port_stays && (is_hosts || !keeps_port) {
        return end(scratch, Verdict::Drop(DropReason::SctpChecksum));
    }
    write_reply(scratch, scratch.begin.device);
    // Egress looks up only packets of backends in this filter, so the bit must be set before the first reply can arrive.
    tables.put_in_use(&scratch.backend.ip, scratch.backend.port);
    false
}

#[inline(always)]
fn write_forward(settings: &Settings, scratch: &mut Scratch) {
    let Scratch { flow, begin, backend, key, service, backend_id, .. } = scratch;
    let is_hairpin = begin.may_turn && backend.ip == key.tuple.source;
    flow.to = key.tuple;
    flow.kind = if is_hairpin { Kind::HAIRPIN } else { Kind::FORWARD };
    flow.service = service.id;
    flow.backend = *backend_id;
    flow.epoch = backend.epoch;
    flow.seen = begin.now;
    flow.begun = Flow::moment(begin.now);
    flow.shown = begin.shown;
    flow.expected = begin.expected;
    flow.frontends_epoch = settings.removals;
    flow.client_device = 0;
    flow.flags = if begin.masquerade { Flow::MASQUERADED } else { 0 };
    flow.to.destination = backend.ip;
    flow.to.destination_port = backend.port;
    if is_hairpin {
        flow.to.source = hairpin_address(settings, backend.ip.is_v4());
    } else if !begin.source.is_unspecified() {
        flow.to.source = begin.source;
    }
}

/// Puts the other entries of the flow in `scratch.flow`, whose reply stands, the forward one last, and what else is
/// remembered of its first packet.
#[inline(always)]
pub(super) fn stand<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    let mut stands = true;
    if scratch.begin.masquerade {
        write_masquerade(scratch);
        stands = tables.put_flow(&scratch.opposite_key, &scratch.opposite);
    } else if tables.settings().is_some_and(|all| all.has(Settings::MASQUERADE_KUBE_PROXY)) {
        // An earlier flow of these ends, by another frontend, may have left there without its source.
        scratch.key.write_masquerade_key(&scratch.flow, &mut scratch.other_key);
        tables.remove_flow(&scratch.other_key);
    }
    // The forward entry is last: a packet that finds it may rely on all others.
    stands = stands && tables.put_flow(&scratch.key, &scratch.flow);
    // The protected table is asked first: an old entry there would hide the new transient one.
    if scratch.begin.renews {
        tables.remove_protected(&scratch.key);
    }
    if stands {
        choose::remember(tables, scratch, scratch.asker.client, scratch.begin.now);
        fragments::remember(tables, scratch);
        return false;
    }
    // A reply that another CPU wrote for the same flow belongs to that CPU's forward entry: leave it.
    if scratch.reservation == Reservation::Made {
        end_tail(tables, scratch);
    }
    end(scratch, Verdict::Drop(DropReason::FlowTableFull))
}

/// Writes the reply entry of the flow in `scratch.flow` into `scratch.opposite`, and its key.
#[inline(always)]
const fn write_reply(scratch: &mut Scratch, device: u32) {
    scratch.key.write_opposite(&scratch.flow, &mut scratch.opposite_key);
    let is_hairpin = scratch.flow.kind.0 == Kind::HAIRPIN.0;
    let kind = if is_hairpin { Kind::HAIRPIN } else { Kind::REPLY };
    scratch.flow.write_answer(kind, &mut scratch.opposite);
    scratch.key.tuple.write_reversed(&mut scratch.opposite.to);
    scratch.opposite.client_device = device;
}

/// Writes the entry that has the source of `scratch.flow` become ours, into `scratch.opposite`.
#[inline(always)]
const fn write_masquerade(scratch: &mut Scratch) {
    scratch.flow.write_entry(Kind::MASQUERADE, &mut scratch.opposite);
    scratch.opposite.to = Tuple::NONE;
    scratch.key.write_masquerade_key(&scratch.flow, &mut scratch.opposite_key);
}

/// Ends the flow that `scratch.key` meant before, which is in `scratch.flow`, but for its forward entry. Where another flow
/// has taken its reply over ([`ports::reserve`]), nothing is left to end: the masquerade beside that is the other's too.
#[inline(never)]
fn end_old<T: Tables>(tables: &T, scratch: &mut Scratch) {
    scratch.key.write_opposite(&scratch.flow, &mut scratch.opposite_key);
    let is_anothers = tables.flow(&scratch.opposite_key, &mut scratch.other)
        && !scratch.other.to.is_reverse_of(&scratch.key.tuple);
    if !is_anothers {
        end_tail(tables, scratch);
    }
}

/// Makes the reply of the forward entry in `scratch.flow` anew, into `scratch.opposite`. False where its tuple is another flow's by
/// now: then this one ends, and its next packet begins anew with another port.
#[inline(always)]
pub(super) fn make_reply<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    write_reply(scratch, scratch.begin.device);
    let stands =
        matches!(ports::stand(tables, scratch), Ok(Reservation::Made | Reservation::Found));
    if !stands {
        tables.remove_flow(&scratch.key);
    }
    stands
}

/// The address that stands for a pod that reaches itself.
#[inline(always)]
pub(super) const fn hairpin_address(settings: &Settings, v4: bool) -> Ip {
    if v4 { settings.hairpin4 } else { settings.hairpin6 }
}

/// Removes all entries of the flow in `scratch.flow`, but the forward one. Its reply comes last:
/// who makes it anew makes the others after that.
#[inline(never)]
pub(super) fn end_tail<T: Tables>(tables: &T, scratch: &mut Scratch) {
    if scratch.flow.flags & Flow::MASQUERADED != 0 {
        scratch.key.write_masquerade_key(&scratch.flow, &mut scratch.opposite_key);
        if tables.flow(&scratch.opposite_key, &mut scratch.other) {
            tables.remove_flow(&scratch.opposite_key);
            scratch.other.to.write_reversed(&mut scratch.opposite_key.tuple);
            scratch.opposite_key.side = Side::INGRESS;
            // Where the kernel has displaced it, the tuple may be another flow's by now.
            let has_answers = tables.flow(&scratch.opposite_key, &mut scratch.other);
            if has_answers && scratch.other.to.is_reverse_of(&scratch.flow.to) {
                tables.remove_flow(&scratch.opposite_key);
            }
        }
    }
    scratch.key.write_opposite(&scratch.flow, &mut scratch.opposite_key);
    tables.remove_flow(&scratch.opposite_key);
}
