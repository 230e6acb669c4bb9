//! Addresses and prefixes: parsed as leniently as upstream always did, and warned about if their form is unusual.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::family::Family;
use crate::field::Cause;

/// Parses an address as fields older than upstream's strict rules may hold it: numbers with leading zeros are decimal.
pub(crate) fn sloppy(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    // Rust's parser refuses leading zeros, which old objects contain.
    let octets: Vec<u8> = text.split('.').map(octet).collect::<Option<_>>()?;
    let octets: [u8; 4] = octets.try_into().ok()?;
    Some(Ipv4Addr::from(octets).into())
}

fn octet(text: &str) -> Option<u8> {
    if text.is_empty() || !text.bytes().all(|it| it.is_ascii_digit()) {
        return None;
    }
    let digits = text.trim_start_matches('0');
    if digits.is_empty() { Some(0) } else { digits.parse().ok() }
}

/// Returns the family for allocation: a v4-mapped address counts as IPv4.
pub(crate) fn family(text: &str) -> Family {
    match sloppy(text).map(|it| it.to_canonical()) {
        Some(IpAddr::V6(_)) => Family::V6,
        Some(IpAddr::V4(_)) | None => Family::V4,
    }
}

/// Validates an address of a field that is older than the strict rules: a stored value stays valid.
pub(crate) fn legacy_ip(field: &str, value: &str, stored: &[String]) -> Vec<Cause> {
    // Otherwise an old object could no longer be updated at all.
    if stored.iter().any(|it| it == value) {
        return Vec::new();
    }
    let detail = match (sloppy(value), value.parse::<IpAddr>()) {
        (None, _) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        (Some(_), Err(_)) => "must not have leading 0s",
        (Some(_), Ok(IpAddr::V6(it))) if it.to_ipv4_mapped().is_some() => {
            "must not be an IPv4-mapped IPv6 address"
        }
        (Some(_), Ok(_)) => return Vec::new(),
    };
    vec![Cause::invalid(field, value, detail)]
}

/// Validates an address that packets may be sent to: not unspecified, loopback, link-local or link-local multicast.
pub(crate) fn endpoint_address(value: &str, field: &str) -> Vec<Cause> {
    let Some(address) = sloppy(value).map(|it| it.to_canonical()) else {
        return vec![Cause::invalid(field, value, "must be a valid IP address")];
    };
    let unspecified = format!("may not be unspecified ({value})");
    let is_link_local = match address {
        IpAddr::V4(it) => it.is_link_local(),
        IpAddr::V6(it) => it.is_unicast_link_local(),
    };
    let is_link_local_multicast = match address {
        // Only link-local multicast is refused; upstream accepts other multicast addresses here.
        IpAddr::V4(it) => it.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(it) => it.segments().first().is_some_and(|it| it & 0xff0f == 0xff02),
    };
    let rules = [
        (address.is_unspecified(), unspecified.as_str()),
        (address.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        (is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        (
            is_link_local_multicast,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        ),
    ];
    let broken = rules.into_iter().filter(|it| it.0);
    broken.map(|it| Cause::invalid(field, value, it.1)).collect()
}

/// A prefix as it is written: address and length, host bits included.
struct Cidr {
    address: IpAddr,
    length: u8,
    has_zeros: bool,
}

impl Cidr {
    /// Parses a prefix as leniently as [`sloppy`] parses an address.
    fn sloppy(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/')?;
        let parsed = sloppy(address)?;
        let has_zeros =
            address.parse::<IpAddr>().is_err() || (length.len() > 1 && length.starts_with('0'));
        let is_number = !length.is_empty() && length.bytes().all(|it| it.is_ascii_digit());
        let length: u8 = is_number.then(|| length.parse().ok())??;
        let most = if parsed.is_ipv4() { 32 } else { 128 };
        (length <= most).then_some(Self { address: parsed, length, has_zeros })
    }

    fn has_host_bits(&self) -> bool {
        let (bits, width) = match self.address {
            IpAddr::V4(it) => (u128::from(it.to_bits()), 32),
            IpAddr::V6(it) => (it.to_bits(), 128),
        };
        // Shifted to the left end, the host bits remain alone.
        let host = width - u32::from(self.length);
        host > 0 && bits << (128 - host) != 0
    }
}

/// Validates a prefix of a field that is older than the strict rules: a stored value stays valid.
pub(crate) fn cidr(field: &str, value: &str, stored: &[String]) -> Vec<Cause> {
    if stored.iter().any(|it| it == value) {
        return Vec::new();
    }
    let detail = match Cidr::sloppy(value) {
        None => "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        Some(it) if it.has_zeros => "must not have leading 0s in IP or prefix length",
        Some(Cidr { address: IpAddr::V6(it), .. }) if it.to_ipv4_mapped().is_some() => {
            "must not have an IPv4-mapped IPv6 address"
        }
        Some(it) if it.has_host_bits() => "must not have bits set beyond the prefix length",
        Some(_) => return Vec::new(),
    };
    vec![Cause::invalid(field, value, detail)]
}

/// Returns a warning for a valid address that is not in canonical form.
pub(crate) fn canonical_warning(field: &str, value: &str) -> Option<String> {
    let address = sloppy(value)?;
    let is_mapped = matches!(address, IpAddr::V6(it) if it.to_ipv4_mapped().is_some());
    if value.parse::<IpAddr>().is_err() || is_mapped {
        let usual = address.to_canonical();
        return Some(format!(
            "{field}: non-standard IP address {value:?} is invalid: use \"{usual}\""
        ));
    }
    let usual = address.to_string();
    (address.is_ipv6() && usual != value).then(|| {
        format!(
            "{field}: IPv6 address {value:?} should be in RFC 5952 canonical format ({usual:?})"
        )
    })
}

/// Returns the address `by` places after this one; `None` past the last address.
pub(crate) fn successor(address: IpAddr, by: u128) -> Option<IpAddr> {
    match address {
        IpAddr::V4(it) => {
            let by = u32::try_from(by).ok()?;
            it.to_bits().checked_add(by).map(|it| Ipv4Addr::from_bits(it).into())
        }
        IpAddr::V6(it) => it.to_bits().checked_add(by).map(|it| Ipv6Addr::from_bits(it).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(causes: &[Cause]) -> &str {
        causes.first().map_or("", |it| it.message.rsplit(": ").next().unwrap())
    }

    #[test]
    fn statement_24_addresses_are_canonical_or_stored() {
        assert_eq!(legacy_ip("f", "10.0.0.1", &[]), []);
        assert_eq!(legacy_ip("f", "FE80:0::1", &[]), [], "IPv6 may be written at length");
        assert_eq!(detail(&legacy_ip("f", "010.0.0.1", &[])), "must not have leading 0s");
        assert_eq!(legacy_ip("f", "010.0.0.1", &["010.0.0.1".to_owned()]), []);
        let mapped = legacy_ip("f", "::ffff:1.2.3.4", &[]);
        assert!(mapped[0].message.ends_with("must not be an IPv4-mapped IPv6 address"));
        for wrong in ["1.2.3", "1.2.3.256", "x", "", "1.2.3.4.5"] {
            assert!(
                legacy_ip("f", wrong, &[])[0].message.contains("must be a valid IP"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn statement_34_prefixes() {
        assert_eq!(cidr("f", "10.0.0.0/8", &[]), []);
        assert_eq!(cidr("f", "2001:db8::/64", &[]), []);
        assert_eq!(cidr("f", "0.0.0.0/0", &[]), []);
        assert_eq!(
            detail(&cidr("f", "10.0.0.1/8", &[])),
            "must not have bits set beyond the prefix length"
        );
        assert!(detail(&cidr("f", "010.0.0.0/8", &[])).starts_with("must not have leading 0s"));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/", "x/8", "10.0.0.0/-1"] {
            assert!(cidr("f", wrong, &[])[0].message.contains("valid CIDR"), "{wrong}");
        }
    }

    #[test]
    fn statement_29_special_addresses() {
        let special =
            ["0.0.0.0", "127.0.0.1", "169.254.1.1", "224.0.0.5", "::", "::1", "fe80::1", "ff02::1"];
        for value in special {
            assert_eq!(endpoint_address(value, "f").len(), 1, "{value}");
        }
        for value in ["192.0.2.1", "2001:db8::1", "224.0.1.1"] {
            assert_eq!(endpoint_address(value, "f"), [], "{value}");
        }
    }

    #[test]
    fn other_forms_are_warned_of() {
        assert_eq!(canonical_warning("f", "2001:db8::1"), None);
        assert_eq!(
            canonical_warning("f", "2001:DB8::1").unwrap(),
            r#"f: IPv6 address "2001:DB8::1" should be in RFC 5952 canonical format ("2001:db8::1")"#
        );
    }
}
