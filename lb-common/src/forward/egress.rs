//! Packets that go out: answers to a client, flows that leave the node for a remote backend, and this host's own.

use super::parts::{Part, Parts, end};
use super::{Role, flows, host, ports};
use crate::config::Settings;
use crate::event::{Translation, Verdict};
use crate::flow::{Kind, Side, Tuple};
use crate::scratch::{Next, Scratch};
use crate::tables::Tables;
use crate::wire::Piece;

/// Handles any packet that goes out by a device.
#[inline(always)]
pub fn whole<P: Parts<T>, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Verdict {
    (scratch.role, scratch.headers.key.side) = (role, Side::EGRESS);
    let _ended: bool = path(packet, tables, scratch);
    scratch.verdict
}

#[inline(always)]
fn path<P: Parts<T>, T: Tables>(packet: &mut P, tables: &T, scratch: &mut Scratch) -> bool {
    if packet.part(tables, scratch, Part::Parse) {
        return true;
    }
    if scratch.headers.view.is_icmp() {
        return packet.part(tables, scratch, Part::Icmp)
            || packet.part(tables, scratch, Part::Refuse);
    }
    if scratch.headers.view.piece == Piece::Later && packet.part(tables, scratch, Part::Recall) {
        return true;
    }
    if packet.part(tables, scratch, Part::SeekOut) {
        return true;
    }
    if scratch.next == Next::Host {
        return host::path(packet, tables, scratch);
    }
    let needs_source = scratch.next == Next::Masquerade;
    if needs_source && ports::tries(packet, tables, scratch, Part::Masquerade) {
        return true;
    }
    if flows::must_touch(tables, scratch) && packet.part(tables, scratch, Part::Touch) {
        return true;
    }
    if packet.part(tables, scratch, Part::Rewrite) {
        return true;
    }
    let is_reply = scratch.found.flow.kind == Kind::REPLY;
    let what = if is_reply { Translation::Reply } else { Translation::Masquerade };
    end(scratch, Verdict::Translated(what))
}

/// Whether packets leave by such a device under our address: to a pod only where it is done as kube-proxy does it.
#[inline(always)]
pub(super) fn masquerades(settings: &Settings, role: Role) -> bool {
    role == Role::Edge || settings.has(Settings::MASQUERADE_KUBE_PROXY)
}

/// Whether a packet that goes out, and that no process of this host sends to a frontend, can be of a flow: all of those have a
/// backend at one end to which some flow of this node goes. Two bytes tell most other packets from these (ADR 0020).
#[inline(always)]
pub(super) fn may_be_ours<T: Tables>(
    tables: &T,
    settings: &Settings,
    tuple: &Tuple,
    role: Role,
) -> bool {
    if role == Role::Host {
        return false;
    }
    tables.is_in_use(&tuple.source, tuple.source_port)
        || masquerades(settings, role)
            && tables.is_in_use(&tuple.destination, tuple.destination_port)
}
