//! The settings that follow from the machine: addresses, source ports, whose sockets.

use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::ops::RangeInclusive;

use lb_common::addr::{Ip, Port};
use lb_common::config::{Settings, USUAL_NODE_PORTS};

use super::Primary;
use crate::config::Config;

/// Stands for a pod that reaches itself: the dummy address of RFC 7600, routed nowhere, on nobody's link.
const HAIRPIN4: Ip = Ip::v4([192, 0, 0, 8]);
/// The same for IPv6: out of the discard-only prefix of RFC 6666.
const HAIRPIN6: Ip = Ip::v6([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
/// Lowest port for translated sources.
const LOWEST: u16 = 1_024;
/// The ports of local sockets by the kernel's default.
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// Ports of translated sources where the host's leave too few.
const SHARED: RangeInclusive<u16> = LOWEST..=29_999;
/// With fewer free ports than this, translated sources share those of the host.
const FEW: u16 = 1_024;

/// The part of the settings that does not follow from services.
pub fn settings(primary: Primary, netns_cookie: u64, config: &Config) -> Settings {
    let ports = source_ports(&ephemeral_ports()).unwrap_or(SHARED);
    Settings {
        netns_cookie,
        hairpin4: HAIRPIN4,
        hairpin6: HAIRPIN6,
        node4: primary.v4.map_or(Ip::UNSPECIFIED, Ip::from),
        node6: primary.v6.map_or(Ip::UNSPECIFIED, Ip::from),
        source_port_low: Port::new(*ports.start()),
        source_port_high: Port::new(*ports.end()),
        flags: config.flags(),
        socket_mode: config.socket_mode(),
        lifetimes: config.lifetimes(),
        ..Settings::default()
    }
}

/// A random number other than zero.
pub fn secret() -> u32 {
    RandomState::new().hash_one(0_u8) as u32 | 1
}

/// `net.ipv4.ip_local_port_range` of our namespace.
fn ephemeral_ports() -> RangeInclusive<u16> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(low)), Some(Ok(high))) => low..=high,
        _ => EPHEMERAL,
    }
}

/// Says that translated sources and sockets of the host may get the same port, where they may.
pub fn shared_ports() -> Option<String> {
    let ephemeral = ephemeral_ports();
    source_ports(&ephemeral).is_none().then(|| {
        let (low, high) = (ephemeral.start(), ephemeral.end());
        let (first, last) = (SHARED.start(), SHARED.end());
        format!(
            "net.ipv4.ip_local_port_range is {low} to {high} and leaves no ports for translated sources: they use \
             {first} to {last}, and may collide with a connection of this host; leave at least {FEW} ports \
             free outside of the NodePorts, such as with 32768 to 60999"
        )
    })
}

/// The largest run of ports that neither host sockets nor `NodePorts` use; nothing where it is short.
fn source_ports(ephemeral: &RangeInclusive<u16>) -> Option<RangeInclusive<u16>> {
    let mut taken = [ephemeral.clone(), USUAL_NODE_PORTS];
    taken.sort_by_key(|range| *range.start());
    let mut best = 0..=0_u16;
    let mut low = u32::from(LOWEST);
    for range in taken.iter().chain([&(u16::MAX..=u16::MAX)]) {
        let high = u32::from(*range.start()).saturating_sub(1);
        if high >= low && high - low > u32::from(best.end() - best.start()) {
            best = low as u16..=high as u16;
        }
        low = low.max(u32::from(*range.end()) + 1);
    }
    (best.end() - best.start() >= FEW - 1).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_ports_avoid_the_hosts_and_the_node_ports() {
        assert_eq!(source_ports(&EPHEMERAL), Some(1_024..=29_999));
        assert_eq!(source_ports(&(1_024..=9_999)), Some(32_768..=65_534));
        assert_eq!(source_ports(&(10_000..=65_535)), Some(1_024..=9_999));
        assert_eq!(source_ports(&(1_024..=65_535)), None);
        assert_eq!(source_ports(&(2_047..=65_535)), None, "1,023 are too few");
    }
}
