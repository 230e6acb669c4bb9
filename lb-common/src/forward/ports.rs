//! Source ports of flows: the client's own where it can be told apart, else one that we make up.

use super::choose::SECOND;
use crate::addr::{Ip, Port, Protocol};
use crate::config::Settings;
use crate::event::{DropReason, Event};
use crate::flow::{Flow, Kind, Tuple, state};
use crate::hash;
use crate::scratch::Scratch;
use crate::service::Frontend;
use crate::tables::{Added, Tables};

/// Ports tried before a flow is refused, ...
const TRIES: u32 = 16;
/// ... and how many make it known that they run out.
const SCARCE: u32 = TRIES / 2;
/// From one try to the next: odd, and far from any part of the range (2^32 by the golden ratio).
const NEXT: u32 = 0x9e37_79b9;

/// By whom a half stands that a packet needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// By this packet: it goes again if the flow fails.
    Made,
    /// By another packet of the same flow, at once on another CPU or before: it stays.
    Found,
    /// It does not: the key is another flow's.
    Taken,
}

/// Takes the reply tuple of a new flow. Where it belongs to another live flow, or its client may use it to talk
/// to the backend directly, the source port is shifted. Never [`Place::Taken`].
#[inline(always)]
pub(super) fn reserve<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<Place, DropReason> {
    if !tables.is_direct(hash::whole(&scratch.flow.to, scratch.key.protocol)) {
        let place = take(tables, scratch)?;
        if place != Place::Taken {
            return Ok(place);
        }
        if is_over(&scratch.other, scratch.twin.seen) {
            // That of a connection that ended: its forward half, if any is left, is swept as an orphan.
            let put = tables.put_flow(&scratch.twin_key, &scratch.twin);
            return if put { Ok(Place::Made) } else { Err(DropReason::FlowTableFull) };
        }
    }
    shift(tables, settings, scratch)
}

#[inline(never)]
fn shift<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<Place, DropReason> {
    let place = seek(tables, settings, scratch, false)?;
    tables.count(Event::PortShifted);
    Ok(place)
}

/// Puts the twin where its key says, unless another flow is there, which then lies in `scratch.other`.
///
/// One of the same flow is as good: of two first packets at once, on two CPUs, the later one takes the port
/// that the earlier one found.
#[inline(always)]
fn take<T: Tables>(tables: &T, scratch: &mut Scratch) -> Result<Place, DropReason> {
    match tables.add_flow(&scratch.twin_key, &scratch.twin) {
        Added::Yes => return Ok(Place::Made),
        Added::Full => return Err(DropReason::FlowTableFull),
        Added::Taken => {}
    }
    if !tables.flow(&scratch.twin_key, &mut scratch.other) || scratch.other.to != scratch.twin.to {
        return Ok(Place::Taken);
    }
    let put = tables.put_flow(&scratch.twin_key, &scratch.twin);
    if put { Ok(Place::Found) } else { Err(DropReason::FlowTableFull) }
}

/// Whether a half can only belong to a connection that ended.
#[inline(always)]
const fn is_over(flow: &Flow, now: u64) -> bool {
    flow.state & state::RST != 0
        || flow.state & state::FIN != 0 && now.saturating_sub(flow.seen) >= 2 * SECOND
}

/// Finds a source port towards the backend, for the flow and for the key of its twin. `is_own`: on an address of this
/// node, that of `scratch.frontend`, where `NodePorts` are.
///
/// VERIFIER: not a function of its own, for its callers are at the end of the deepest chain of calls already.
#[inline(always)]
fn seek<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    is_own: bool,
) -> Result<Place, DropReason> {
    let mut wish = wish(&scratch.key.tuple, scratch.key.protocol);
    for tried in 0..TRIES {
        let port = source_port(settings, wish);
        wish = wish.wrapping_add(NEXT);
        if is_own {
            scratch.frontend.port = port;
            if tables.knows(&scratch.frontend) {
                continue;
            }
        }
        scratch.twin_key.tuple.destination_port = port;
        let place = take(tables, scratch)?;
        if place == Place::Taken {
            tables.count(Event::PortTaken);
            continue;
        }
        if tried >= SCARCE {
            tables.count(Event::PortsScarce);
        }
        scratch.flow.to.source_port = port;
        return Ok(place);
    }
    Err(DropReason::PortsExhausted)
}

/// Which port of the range to try first. The ports of one client become as many others: the backend remembers each
/// connection for a minute (`TIME_WAIT`) and takes a new one from the same port only when its client is the same.
#[inline(always)]
const fn wish(tuple: &Tuple, protocol: Protocol) -> u32 {
    // Half of the bits, so that adding the port does not wrap.
    (hash::client(tuple, protocol) >> 16) + tuple.source_port.get() as u32
}

/// A port of the range for translated sources.
#[inline(always)]
const fn source_port(settings: &Settings, wish: u32) -> Port {
    let low = settings.source_port_low.get();
    let width = settings.source_port_high.get().saturating_sub(low) as u32 + 1;
    Port::new(low + (wish % width) as u16)
}

/// Gives the masqueraded flow of `scratch.key` (its EGRESS half) its source, on the first packet that leaves.
#[inline(never)]
pub(super) fn masquerade<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    device: u32,
) -> Result<(), DropReason> {
    let device = tables.device(device).ok_or(DropReason::NoSourceAddress)?;
    let v4 = scratch.key.tuple.destination.is_v4();
    let source = if v4 { device.source4 } else { device.source6 };
    if source == Ip::UNSPECIFIED {
        return Err(DropReason::NoSourceAddress);
    }
    scratch.flow.write_half(Kind::UNMASQUERADE, &mut scratch.twin);
    scratch.key.tuple.write_reversed(&mut scratch.twin.to);
    scratch.flow.to = scratch.key.tuple;
    scratch.flow.to.source = source;
    scratch.key.write_other(&scratch.flow, &mut scratch.twin_key);
    scratch.frontend = Frontend::node_port(source, Port::NONE, scratch.key.protocol);
    let place = seek(tables, settings, scratch, true)?;
    if tables.put_flow(&scratch.key, &scratch.flow) {
        return Ok(());
    }
    if place == Place::Made {
        tables.remove_flow(&scratch.twin_key);
    }
    Err(DropReason::FlowTableFull)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{source_port, wish};
    use crate::addr::{Endpoint, Port, Protocol};
    use crate::config::Settings;
    use crate::event::{DropReason, Hook, Translation, Verdict};
    use crate::fake::{Datagram, Fake, Step, at, run, world};
    use crate::flow::{FlowKey, Kind, Side, Tuple};

    fn step(hook: Hook, packet: &Datagram) -> Step {
        let verdict = Verdict::Translated(Translation::NewFlow);
        Step { hook, from_host: false, packet: packet.build(), verdict, out: None }
    }

    /// A client outside asks a `NodePort` of this node, whose backend is on another.
    fn node() -> (Fake, Step, Step) {
        let mut tables = Fake::node();
        let service = tables.add_service(1, &[(world::REMOTE4, false)]);
        tables.node_port(world::NODE4, Protocol::TCP, service);
        let comes = step(Hook::EdgeIngress, &Datagram::syn(world::CLIENT4, world::NODE4));
        let leaves = step(Hook::EdgeEgress, &Datagram::syn(world::CLIENT4, world::REMOTE4));
        (tables, comes, leaves)
    }

    fn key(from: &str, to: &str, side: Side) -> FlowKey {
        FlowKey::new(Tuple::new(at(from), at(to)), Protocol::TCP, side)
    }

    #[test]
    fn source_without_room_for_its_flow_is_given_back() {
        let (mut tables, comes, leaves) = node();
        let _new = run(&comes, &tables);
        let before = tables.flows.borrow().clone();
        let mark = key(world::CLIENT4, world::REMOTE4, Side::EGRESS);
        assert_eq!(before[&mark].kind, Kind::MASQUERADE);
        let _: bool = tables.flow_failures.insert(mark);
        let (verdict, out) = run(&leaves, &tables);
        assert_eq!(verdict, Verdict::Drop(DropReason::FlowTableFull));
        assert_eq!(out, leaves.packet);
        assert_eq!(*tables.flows.borrow(), before, "nothing is left of it");
        tables.flow_failures.clear();
        assert_eq!(run(&leaves, &tables).0, Verdict::Translated(Translation::Masquerade));
    }

    #[test]
    fn no_half_stands_where_another_finds_no_room() {
        for (from, to, side) in [
            (world::CLIENT4, world::NODE4, Side::INGRESS),
            (world::CLIENT4, world::REMOTE4, Side::EGRESS),
            (world::REMOTE4, world::CLIENT4, Side::EGRESS),
        ] {
            let (mut tables, comes, _) = node();
            let _: bool = tables.flow_failures.insert(key(from, to, side));
            let (verdict, out) = run(&comes, &tables);
            assert_eq!(verdict, Verdict::Drop(DropReason::FlowTableFull), "{from} {to}");
            assert_eq!(out, comes.packet);
            assert!(tables.flows.borrow().is_empty(), "{from} {to}: {:#?}", tables.flows);
        }
    }

    #[test]
    fn half_that_another_packet_of_the_flow_made_outlives_a_failure() {
        for mark in [None, Some(key(world::CLIENT4, world::REMOTE4, Side::EGRESS))] {
            let (mut tables, comes, leaves) = node();
            let _new = run(&comes, &tables);
            let _left = run(&leaves, &tables);
            let forward = key(world::CLIENT4, world::NODE4, Side::INGRESS);
            // As if the other one were about to write it.
            let _: Option<_> = tables.flows.borrow_mut().remove(&forward);
            let _: bool = tables.flow_failures.insert(mark.unwrap_or(forward));
            let before: BTreeSet<FlowKey> = tables.flows.borrow().keys().copied().collect();
            assert_eq!(run(&comes, &tables).0, Verdict::Drop(DropReason::FlowTableFull));
            let after: BTreeSet<FlowKey> = tables.flows.borrow().keys().copied().collect();
            assert_eq!(after, before);
        }
    }

    /// What Linux gives its own connections by default.
    const EPHEMERAL: core::ops::RangeInclusive<u16> = 32_768..=60_999;

    #[test]
    fn ports_of_one_client_become_as_many_others() {
        let settings = Settings {
            source_port_low: Port::new(1_024),
            source_port_high: Port::new(29_999),
            ..Settings::default()
        };
        for number in 0..64 {
            let backend = Endpoint::new(at("10.244.2.7:0").ip, Port::new(8_000 + number));
            let client = at("192.168.0.9:0").ip;
            let port = |port| {
                let tuple = Tuple::new(Endpoint::new(client, Port::new(port)), backend);
                source_port(&settings, wish(&tuple, Protocol::TCP))
            };
            let ports: BTreeSet<_> = EPHEMERAL.map(port).collect();
            assert_eq!(ports.len(), EPHEMERAL.len(), "{backend:?}");
            assert!(ports.iter().all(|port| (1_024..30_000).contains(&port.get())));
        }
    }
}
