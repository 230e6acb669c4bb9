//! The settings that follow from the machine: ports for masquerade, the network namespace, a random number.

use std::fs;
use std::ops::RangeInclusive;

use lb_common::addr::Ip;
use lb_common::config::USUAL_NODE_PORTS;

use crate::random;

/// Source address of packets from a pod to itself: the IPv4 dummy address (RFC 7600), which is not routed and on no
/// link.
pub const HAIRPIN4: Ip = Ip::v4([192, 0, 0, 8]);
/// The same for IPv6, from the discard-only prefix (RFC 6666).
pub const HAIRPIN6: Ip = Ip::v6([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8]);
/// Lowest source port for masquerade.
const LOWEST: u16 = 1_024;
/// The kernel's default range of ports for local sockets.
const EPHEMERAL: RangeInclusive<u16> = 32_768..=60_999;

/// Source ports for masquerade if the host's sockets leave too few.
const SHARED: RangeInclusive<u16> = LOWEST..=29_999;
/// With fewer free ports than this, masquerade shares ports with the host's sockets.
const FEW: u16 = 1_024;

/// Returns the ports for masquerade on this node.
pub fn ports_of_translated_sources() -> RangeInclusive<u16> {
    source_ports(&ephemeral_ports()).unwrap_or(SHARED)
}

/// Returns the ports for masquerade with the kernel's default range of ports for local sockets.
pub fn usual_ports_of_translated_sources() -> RangeInclusive<u16> {
    source_ports(&EPHEMERAL).unwrap_or(SHARED)
}

/// Returns a random number other than zero.
pub fn secret() -> u32 {
    random::number() as u32 | 1
}

/// Reads `net.ipv4.ip_local_port_range` of our network namespace.
fn ephemeral_ports() -> RangeInclusive<u16> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(low)), Some(Ok(high))) => low..=high,
        _ => EPHEMERAL,
    }
}

/// Returns the problem that masqueraded packets and sockets of the host may use the same port.
pub fn overlap_of_ports() -> Option<String> {
    let ephemeral = ephemeral_ports();
    source_ports(&ephemeral).is_none().then(|| {
        let (low, high) = (ephemeral.start(), ephemeral.end());
        let (first, last) = (SHARED.start(), SHARED.end());
        format!(
            "net.ipv4.ip_local_port_range is {low} to {high} and leaves no ports for translated sources: they share \
             {first} to {last} with connections of this host, and ports towards one backend may run out; leave at \
             least {FEW} ports free outside of the NodePorts, such as with 32768 to 60999"
        )
    })
}

/// Returns the largest range of ports that neither sockets of the host nor `NodePorts` use; `None` if it is too small.
fn source_ports(ephemeral: &RangeInclusive<u16>) -> Option<RangeInclusive<u16>> {
    let mut taken = [ephemeral.clone(), USUAL_NODE_PORTS];
    taken.sort_by_key(|range| *range.start());
    let mut best = 0..=0_u16;
    // Wider than a port, as the end of a range plus one may be 65536.
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
