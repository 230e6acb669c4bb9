//! The end of a TCP connection: its flow goes with its last packet, so that short connections leave
//! nothing behind. What ends otherwise is swept by the agent.

use crate::addr::Protocol;
use crate::flow::{Flow, Kind, Side, state};
use crate::scratch::Scratch;
use crate::tables::Tables;
use crate::wire::tcp;

use super::flows;

/// Flags of a packet that something must follow.
pub(super) const NOT_LAST: u8 = tcp::FIN | tcp::SYN | tcp::RST;

/// Removes the flow of `scratch.key` if the packet just translated was its last: the acknowledgement
/// after both sides sent FIN (RFC 9293 3.6). Done where the packet is seen last. An RST proves nothing, it
/// may be forged or out of the window: its flow is left to the sweep, which asks for silence as well.
#[inline(always)]
pub(super) fn after<T: Tables>(tables: &T, scratch: &mut Scratch) {
    if may_be_last(scratch) {
        end(tables, scratch);
    }
}

/// Whether a packet of `scratch.flow` may be its last here, as far as its own half knows.
#[inline(always)]
pub(super) fn may_be_last(scratch: &Scratch) -> bool {
    if scratch.view.protocol != Protocol::TCP {
        return false;
    }
    let flow = &scratch.flow;
    let passes_on =
        matches!(flow.kind, Kind::FORWARD | Kind::HAIRPIN) && flow.flags & Flow::MASQUERADED != 0;
    let may_end = flow.state & state::FIN != 0 && scratch.view.tcp_flags & NOT_LAST == 0;
    may_end && !passes_on && flow.kind != Kind::UNMASQUERADE
}

#[inline(never)]
fn end<T: Tables>(tables: &T, scratch: &mut Scratch) {
    scratch.key.write_other(&scratch.flow, &mut scratch.twin_key);
    if !tables.flow(&scratch.twin_key, &mut scratch.twin) || scratch.twin.state & state::FIN == 0 {
        return;
    }
    // The other half of another flow, which took the place of ours, is not ours to end.
    if !scratch.twin.to.is_reverse_of(&scratch.key.tuple) {
        return;
    }
    // Step by step to the forward half, whose key all others follow from.
    match scratch.flow.kind {
        Kind::FORWARD | Kind::HAIRPIN => scratch.twin = scratch.flow,
        Kind::REPLY => scratch.key = scratch.twin_key,
        Kind::MASQUERADE => {
            scratch.key.tuple.write_reversed(&mut scratch.twin_key.tuple);
            scratch.twin_key.side = Side::EGRESS;
            if !tables.flow(&scratch.twin_key, &mut scratch.other) {
                return;
            }
            scratch.other.to.write_reversed(&mut scratch.key.tuple);
            // This host's own packets are met where they leave.
            let is_hosts = scratch.other.kind == Kind::HAIRPIN;
            scratch.key.side = if is_hosts { Side::EGRESS } else { Side::INGRESS };
            if !tables.flow(&scratch.key, &mut scratch.twin)
                || !scratch.twin.to.is_reverse_of(&scratch.twin_key.tuple)
            {
                return;
            }
        }
        _ => return,
    }
    tables.remove_flow(&scratch.key);
    flows::end_tail(tables, scratch);
}
