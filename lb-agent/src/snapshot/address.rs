//! Reads addresses and prefixes as Kubernetes has always read them.
//!
//! Objects older than the API server's refusal of leading zeros still contain addresses such as "172.30.0.041". Each
//! part is read as decimal (contract 1.4). An IPv4-mapped IPv6 address is read as IPv4.

use std::net::IpAddr;

use ipnet::IpNet;

/// The longest possible address with a prefix length, leading zeros included.
const LONGEST: usize = 80;

/// Reads an address; leading zeros of IPv4 parts are ignored.
pub fn address(text: &str) -> Option<IpAddr> {
    if text.len() > LONGEST {
        return None;
    }
    let ip: IpAddr = text.parse().ok().or_else(|| without_leading_zeros(text)?.parse().ok())?;
    Some(ip.to_canonical())
}

/// Reads a prefix, and clears the bits behind its length. Ignores white space around it.
pub fn prefix(text: &str) -> Option<IpNet> {
    let (ip, length) = text.trim().split_once('/')?;
    // Leading zeros are allowed here as well, as in `ParseCIDRSloppy` of k8s.io/utils.
    if length.is_empty() || length.len() > 4 || !length.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let length: u8 = length.parse().ok()?;
    let mapped = ip.contains(':');
    let ip = address(ip)?;
    // `::ffff:10.0.0.0/104` is 10.0.0.0/8: the mapped form has 96 bits more.
    let length = if mapped && ip.is_ipv4() { length.checked_sub(96)? } else { length };
    IpNet::new(ip, length).ok().map(|net| net.trunc())
}

/// Returns why an address cannot be a service address or an endpoint.
pub(super) const fn special(ip: IpAddr) -> Option<&'static str> {
    if ip.is_unspecified() {
        Some("is the unspecified address")
    } else if ip.is_loopback() {
        Some("is a loopback address")
    } else if ip.is_multicast() {
        Some("is a multicast address")
    } else {
        None
    }
}

/// Reports whether the address is link-local. The API server refuses these as external IPs and endpoints, besides those
/// of [`special`].
pub(super) const fn link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

fn without_leading_zeros(text: &str) -> Option<String> {
    // The last 32 bits of an IPv6 address may be written in dotted form.
    let (front, dotted) = text.rfind(':').map_or(("", text), |at| text.split_at(at + 1));
    let mut parts = Vec::with_capacity(4);
    for part in dotted.split('.') {
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        parts.push(if digits.is_empty() { "0" } else { digits });
    }
    (parts.len() == 4).then(|| format!("{front}{}", parts.join(".")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn leading_zeros_are_decimal() {
        for (text, canonical) in [
            ("172.30.0.041", "172.30.0.41"),
            ("10.180.00.001", "10.180.0.1"),
            ("000.000.000.000", "0.0.0.0"),
            ("::ffff:010.0.0.08", "10.0.0.8"),
            ("fd00:0001::0:1", "fd00:1::1"),
        ] {
            assert_eq!(
                address(text).map(|ip| ip.to_string()).as_deref(),
                Some(canonical),
                "{text}"
            );
        }
    }

    #[test]
    fn malformed_addresses_are_refused() {
        for text in
            ["", "10.0.0", "10.0.0.256", "10.0.0.1.2", "a.b.c.d", "fe80::1%eth0", "10.0.0.-1"]
        {
            assert_eq!(address(text), None, "{text}");
        }
        assert_eq!(address(&"0".repeat(10_000)), None);
    }

    #[test]
    fn prefixes_are_trimmed_and_canonical() {
        for (text, canonical) in [
            ("203.0.113.000/025", "203.0.113.0/25"),
            ("  10.0.0.0/8\n", "10.0.0.0/8"),
            ("10.1.2.3/16", "10.1.0.0/16"),
            ("fd00::1/64", "fd00::/64"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ] {
            assert_eq!(
                prefix(text).map(|net| net.to_string()).as_deref(),
                Some(canonical),
                "{text}"
            );
        }
        for text in ["10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/+8", "/8"] {
            assert_eq!(prefix(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn canonical_addresses_read_as_themselves(bits: u128, v4: bool) {
            let ip = if v4 {
                IpAddr::from((bits as u32).to_be_bytes())
            } else {
                IpAddr::from(bits.to_be_bytes())
            };
            prop_assert_eq!(address(&ip.to_string()), Some(ip.to_canonical()));
        }

        #[test]
        fn no_text_panics(text in ".{0,100}") {
            address(&text);
            prefix(&text);
        }
    }
}
