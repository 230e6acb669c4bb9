//! Datagrams in pieces: only the first fragment carries ports, so they are remembered for the others.

use super::{Step, pass};
use crate::event::{Event, PassReason};
use crate::flow::{FlowKey, Fragment, Ports, Tuple};
use crate::scratch::Scratch;
use crate::tables::Tables;
use crate::wire::Piece;

#[inline(always)]
const fn key(scratch: &Scratch) -> Fragment {
    let FlowKey { tuple, protocol, side, .. } = &scratch.key;
    Fragment::new(tuple.source, tuple.destination, scratch.id, *protocol, *side)
}

/// Gives a later fragment the ports of its datagram. Without them it is the stack's: never a guess.
#[inline(always)]
pub(super) fn recall<T: Tables>(tables: &T, scratch: &mut Scratch) -> Step<()> {
    let Some(ports) = tables.fragment(&key(scratch)) else {
        return pass(PassReason::UnknownFragment);
    };
    scratch.key.tuple.source_port = ports.source;
    scratch.key.tuple.destination_port = ports.destination;
    Ok(())
}

/// Remembers the ports of a first fragment that is being translated.
#[inline(always)]
pub(super) fn remember<T: Tables>(tables: &T, scratch: &Scratch) {
    if scratch.view.piece != Piece::First {
        return;
    }
    let Tuple { source_port: source, destination_port: destination, .. } = scratch.key.tuple;
    if !tables.put_fragment(&key(scratch), &Ports { source, destination }) {
        tables.count(Event::FragmentTableFull);
    }
}
