//! Packets that go out: answers to a client, and flows that leave the node for a remote backend.

use super::{Role, Step, close, flows, fragments, host, icmp, pass, ports, read, rewrite};
use crate::addr::{Ip, Protocol};
use crate::config::Settings;
use crate::event::{PassReason, Translation, Turn, Verdict};
use crate::flow::{Kind, Side, Tuple};
use crate::packet::Packet;
use crate::scratch::Scratch;
use crate::tables::Tables;
use crate::wire::Piece;

/// Handles any packet that goes out by a device.
#[inline(always)]
pub fn whole<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Verdict {
    match steps(packet, tables, scratch, role) {
        Ok(verdict) | Err(verdict) => verdict,
    }
}

#[inline(always)]
fn steps<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    scratch: &mut Scratch,
    role: Role,
) -> Step<Verdict> {
    let settings = read(packet, tables, scratch, Side::EGRESS)?;
    if scratch.view.protocol == Protocol::ICMP || scratch.view.protocol == Protocol::ICMP6 {
        return icmp::egress(packet, tables, settings, scratch, role);
    }
    if scratch.view.piece == Piece::Later {
        fragments::recall(tables, scratch)?;
    }
    if !may_be_ours(packet, tables, settings, &scratch.key.tuple, role) {
        return pass(PassReason::NotOurs);
    }
    let known = tables.flow(&scratch.key, &mut scratch.flow);
    let is_hosts = if known { scratch.flow.kind == Kind::HAIRPIN } else { packet.is_from_host() };
    if role == Role::Edge && is_hosts {
        if !host::find(packet, tables, settings, scratch, known)? {
            host::begin(tables, settings, scratch)?;
        }
    } else if !known {
        return pass(PassReason::NotOurs);
    }
    let what = match scratch.flow.kind {
        Kind::REPLY => Verdict::Translated(Translation::Reply),
        Kind::MASQUERADE => Verdict::Translated(Translation::Masquerade),
        Kind::HAIRPIN if role == Role::Edge => Verdict::TurnedRound(Turn::Host),
        _ => return pass(PassReason::Unchanged),
    };
    if scratch.flow.kind == Kind::MASQUERADE {
        if !masquerades(settings, role) {
            // The backend turned out to be behind a pod device: its answer comes back this way.
            return pass(PassReason::Unchanged);
        }
        if scratch.flow.to.source == Ip::UNSPECIFIED {
            ports::masquerade(packet, tables, settings, scratch).map_err(Verdict::Drop)?;
        }
    }
    flows::touch(tables, &scratch.key, &scratch.flow, &scratch.view);
    fragments::remember(tables, scratch);
    rewrite::packet(packet, &scratch.view, &scratch.key.tuple, &scratch.flow.to)?;
    close::after(tables, scratch);
    if what == Verdict::TurnedRound(Turn::Host) {
        return rewrite::turn_round(packet, Turn::Host);
    }
    Ok(what)
}

/// Whether packets leave by such a device under our address: to a pod only where it is done as kube-proxy does it.
#[inline(always)]
pub(super) fn masquerades(settings: &Settings, role: Role) -> bool {
    role == Role::Edge || settings.has(Settings::MASQUERADE_KUBE_PROXY)
}

/// Whether a packet that goes out can be of a flow: all that do have a backend at one end, but for this host's own. Most
/// that are nobody's are told by a bit or two (ADR 0020).
#[inline(always)]
pub(super) fn may_be_ours<P: Packet, T: Tables>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    tuple: &Tuple,
    role: Role,
) -> bool {
    if tables.may_be_backend(&tuple.source, tuple.source_port) {
        return true;
    }
    masquerades(settings, role)
        && (tables.may_be_backend(&tuple.destination, tuple.destination_port)
            || role == Role::Edge && packet.is_from_host())
}
