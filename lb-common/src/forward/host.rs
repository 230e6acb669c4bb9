//! Packets of this host's own processes that the socket hooks did not translate.
//!
//! What a policy or a source range forbids is left to the packet by the hooks (a socket call cannot
//! be lost silently), and it is dropped or rejected here. What is allowed comes from a process that no hook
//! serves (another cgroup, `socketLB: off`, a raw socket, SCTP): it is translated and turned round on its device, into
//! the stack, as if a client outside had sent it from an address that stands for this host; so is the answer
//! (ADR 0018).

use super::{Refusal, Step, choose, flows, ingress, pass, rewrite};
use crate::config::Settings;
use crate::event::{PassReason, Verdict};
use crate::hash;
use crate::packet::Packet;
use crate::scratch::{Asker, Begin, Scratch, Turned};
use crate::service::{Backend, Frontend};
use crate::tables::Tables;

/// Finds the flow of a packet that may be on its way to a frontend, or an answer to one, into `scratch.flow`. `known`: it
/// is there already. False: it is to be begun, by [`begin`].
#[inline(never)]
pub(super) fn find<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    known: bool,
) -> Step<bool> {
    let is_answer = scratch.key.tuple.destination == flows::host_address(settings, scratch.view.v4);
    if known
        && (is_answer || flows::is_current(tables, settings, &scratch.flow, &scratch.view, false))
    {
        return Ok(true);
    }
    if is_answer {
        return pass(PassReason::NotOurs);
    }
    let mut found = locate(tables, settings, scratch);
    if found.is_ok() {
        if known && flows::still_good(tables, settings, scratch) {
            return Ok(true);
        }
        found = choose(tables, scratch);
    }
    match found {
        Ok(()) => {
            // A backend elsewhere sees the node: its answer must come back.
            let elsewhere = scratch.backend.flags & Backend::LOCAL == 0;
            scratch.begin = Begin {
                state: flows::shown(&scratch.view),
                now: tables.now(),
                masquerade: elsewhere || settings.has(Settings::MASQUERADE_KUBE_PROXY),
                turn: Turned::Host,
                port_stays: rewrite::port_stays(packet, &scratch.view),
                device: 0,
            };
            Ok(false)
        }
        Err(refusal) => match ingress::refuse(packet, tables, scratch, refusal) {
            Ok(verdict) | Err(verdict) => Err(verdict),
        },
    }
}

/// Finds the service that a process asks for.
#[inline(always)]
fn locate<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<(), Refusal> {
    let tuple = &scratch.key.tuple;
    let (ip, port) = (tuple.destination, tuple.destination_port);
    let is_near = choose::is_near(settings, &ip, port, scratch.view.v4);
    scratch.frontend = Frontend::new(ip, port, scratch.view.protocol);
    choose::locate(tables, settings, scratch, is_near)
}

/// Chooses a backend for a process, which external policies do not bind.
#[inline(always)]
fn choose<T: Tables>(tables: &T, scratch: &mut Scratch) -> Result<(), Refusal> {
    let tuple = &scratch.key.tuple;
    if tuple.source.is_martian() || tuple.source == tuple.destination {
        return Err(Refusal::Pass(PassReason::Martian));
    }
    let hash = hash::tuple(tuple, scratch.view.protocol);
    scratch.asker = Asker { client: tuple.source, source: tuple.source, hash, local: 1 };
    choose::choose(tables, scratch, tables.now())
}

/// Begins the flow, as `scratch` says.
///
/// VERIFIER: not from within [`find`], whose part of the stack this needs.
#[inline(always)]
pub(super) fn begin<T: Tables>(tables: &T, settings: &Settings, scratch: &mut Scratch) -> Step<()> {
    flows::begin(tables, settings, scratch).map_err(Verdict::Drop)?;
    choose::remember(tables, scratch, scratch.key.tuple.source, scratch.begin.now);
    Ok(())
}
