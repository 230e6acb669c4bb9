//! Packets of this host's own processes that the socket hooks did not translate.
//!
//! What a policy or a source range forbids is left to the packet by the hooks (a socket call cannot
//! be lost silently), and it is dropped or rejected here.

use super::{Refusal, Step, choose, ingress, pass};
use crate::config::Settings;
use crate::event::{PassReason, Verdict};
use crate::packet::Packet;
use crate::scratch::{Asker, Scratch};
use crate::service::Frontend;
use crate::tables::Tables;

/// Handles a packet of this host that is on its way to a frontend.
#[inline(never)]
pub(super) fn egress<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Step<Verdict> {
    let tuple = scratch.key.tuple;
    if !settings.has(Settings::OTHER_FRONTENDS) && !choose::in_ranges(settings, &tuple.destination)
    {
        return pass(PassReason::NotOurs);
    }
    scratch.frontend =
        Frontend::new(tuple.destination, tuple.destination_port, scratch.view.protocol);
    scratch.asker = Asker { client: tuple.source, source: tuple.source, hash: 0, local: 1 };
    let chosen = choose::locate(tables, settings, scratch, true)
        .and_then(|()| choose::choose(tables, scratch, tables.now()));
    let refusal = match chosen {
        Ok(()) => Refusal::Pass(PassReason::NotOurs),
        Err(refusal) => refusal,
    };
    ingress::refuse(packet, tables, scratch, refusal)
}
