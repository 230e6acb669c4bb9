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

/// Ports tried before a flow is refused.
const TRIES: u32 = 16;
/// From one try to the next: odd, and far from any part of the range (2^32 by the golden ratio).
const NEXT: u32 = 0x9e37_79b9;

/// Takes the reply tuple of a new flow. Where it belongs to another live flow, or its client may use it to talk
/// to the backend directly, the source port is shifted.
#[inline(always)]
pub(super) fn reserve<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<(), DropReason> {
    if tables.is_direct(hash::whole(&scratch.flow.to, scratch.key.protocol)) {
        return shift(tables, settings, scratch);
    }
    match tables.add_flow(&scratch.twin_key, &scratch.twin) {
        Added::Yes => return Ok(()),
        Added::Full => return Err(DropReason::FlowTableFull),
        Added::Taken => {}
    }
    if tables.flow(&scratch.twin_key, &mut scratch.other)
        && (scratch.other.to == scratch.twin.to || is_over(&scratch.other, scratch.twin.seen))
    {
        // Our own half of an earlier try, or that of a connection that ended: its forward half, if
        // any is left, is swept as an orphan.
        let put = tables.put_flow(&scratch.twin_key, &scratch.twin);
        return if put { Ok(()) } else { Err(DropReason::FlowTableFull) };
    }
    shift(tables, settings, scratch)
}

/// Whether a half can only belong to a connection that ended.
#[inline(always)]
const fn is_over(flow: &Flow, now: u64) -> bool {
    flow.state & state::RST != 0
        || flow.state & state::FIN != 0 && now.saturating_sub(flow.seen) >= 2 * SECOND
}

/// Finds a free source port towards the backend.
#[inline(never)]
fn shift<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<(), DropReason> {
    let mut wish = wish(&scratch.key.tuple, scratch.key.protocol);
    for _ in 0..TRIES {
        let port = source_port(settings, wish);
        wish = wish.wrapping_add(NEXT);
        scratch.twin_key.tuple.destination_port = port;
        match tables.add_flow(&scratch.twin_key, &scratch.twin) {
            Added::Yes => {
                scratch.flow.to.source_port = port;
                tables.count(Event::PortShifted);
                return Ok(());
            }
            Added::Full => return Err(DropReason::FlowTableFull),
            Added::Taken => {}
        }
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
    let mut wish = wish(&scratch.key.tuple, scratch.key.protocol);
    for _ in 0..TRIES {
        let port = source_port(settings, wish);
        wish = wish.wrapping_add(NEXT);
        scratch.frontend.port = port;
        if tables.knows(&scratch.frontend) {
            continue;
        }
        scratch.twin_key.tuple.destination_port = port;
        match tables.add_flow(&scratch.twin_key, &scratch.twin) {
            Added::Yes => {
                scratch.flow.to.source_port = port;
                let put = tables.put_flow(&scratch.key, &scratch.flow);
                return if put { Ok(()) } else { Err(DropReason::FlowTableFull) };
            }
            Added::Full => return Err(DropReason::FlowTableFull),
            Added::Taken => {}
        }
    }
    Err(DropReason::PortsExhausted)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{source_port, wish};
    use crate::addr::{Endpoint, Port, Protocol};
    use crate::config::Settings;
    use crate::fake::at;
    use crate::flow::Tuple;

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
