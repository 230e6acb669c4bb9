//! Formats keys and values of the maps as text.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use lb_common::addr::{Ip, Port, Protocol};
use lb_common::config::Prefix;
use lb_common::service::{Flags, Frontend, ServiceId, Source};

/// Returns a prefix as a network, which is written as `10.0.0.0/8` or `fd00::/64`; `None` if it is unset.
pub(crate) fn network(prefix: &Prefix) -> Option<IpNet> {
    let ones: u32 = prefix.mask.octets().iter().map(|byte| byte.count_ones()).sum();
    // An IPv4 address is mapped into the last 32 of 128 bits.
    let bits = if prefix.ip.is_v4() { ones.saturating_sub(96) } else { ones };
    let network = IpNet::new(prefix.ip.into(), u8::try_from(bits).ok()?).ok();
    network.filter(|_| prefix.is_set())
}

/// Formats a source range: `10.0.0.0/8`. `bits` is the prefix length of its key in `SOURCE_RANGES`, where the 32 bits
/// of the service come first, and IPv4 is in mapped form.
pub(crate) fn source_range(bits: u32, source: &Source) -> String {
    let length = bits.saturating_sub(if source.ip.is_v4() { 128 } else { 32 });
    format!("{}/{length}", IpAddr::from(source.ip))
}

pub(crate) fn endpoint(at: Ip, port: Port) -> SocketAddr {
    SocketAddr::new(at.into(), port.get())
}

/// Formats a protocol: `TCP`, `UDP`, `SCTP`, or its number.
pub(crate) fn protocol(protocol: Protocol) -> String {
    match protocol {
        Protocol::TCP => "TCP".into(),
        Protocol::UDP => "UDP".into(),
        Protocol::SCTP => "SCTP".into(),
        Protocol(number) => number.to_string(),
    }
}

/// Reports whether the entry is not a frontend but the marker of an address, whose other ports are refused.
pub(crate) fn is_marker(frontend: &Frontend) -> bool {
    *frontend == Frontend::cluster_address(frontend.ip)
}

/// Formats a frontend: `10.96.0.1:80/TCP`, `*:30080/TCP` or `[*]:30080/TCP` for a `NodePort`, `10.96.0.1 (marker)` for
/// the marker of an address.
pub(crate) fn frontend(frontend: &Frontend) -> String {
    let protocol = protocol(frontend.protocol);
    let port = frontend.port.get();
    let at = frontend.ip;
    if is_marker(frontend) {
        format!("{} (marker)", IpAddr::from(at))
    } else if at == Ip::ANY_V4 {
        format!("*:{port}/{protocol}")
    } else if at == Ip::ANY_V6 {
        format!("[*]:{port}/{protocol}")
    } else {
        format!("{}/{protocol}", endpoint(at, frontend.port))
    }
}

/// Returns the name of a service port, or its number if the name is not known.
pub(crate) fn service(id: ServiceId, name: Option<&str>) -> String {
    match (name, id) {
        (Some(name), _) => name.to_owned(),
        // A flow of a pod that uses a backend by its own address (ADR 0013).
        (None, 0) => "(direct)".to_owned(),
        (None, id) => format!("#{id}"),
    }
}

/// Formats a client: an address, or the cookie of a network namespace or socket, which no packet carries.
pub(crate) fn client(at: Ip) -> String {
    let [_, _, high, low] = at.words();
    let cookie = u64::from(high) << 32 | u64::from(low);
    if at == Ip::cookie(cookie) { format!("cookie:{cookie}") } else { IpAddr::from(at).to_string() }
}

/// Formats a duration in seconds: `0s`, `59s`, `3m12s`, `2h05m`.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
    }
}

/// Names a map without room for a Service, and the remedy: the agent enlarges the map unless its size is configured or
/// exceeds the memory limit.
pub(crate) fn full(map: &str) -> String {
    format!(
        "{map} is full: raise its size if mapSizes or --map-size sets it, otherwise the memory \
         limit, and the agent enlarges it"
    )
}

/// Returns the kind of frontend of an entry.
pub(crate) const fn kind(flags: Flags) -> &'static str {
    if flags.has(Flags::NODE_PORT) {
        "NodePort"
    } else if flags.has(Flags::EXTERNAL) {
        "External"
    } else {
        "ClusterIP"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_range_has_the_bits_of_its_own_family() {
        let range = |bits, ip| source_range(bits, &Source::new(7, ip));
        assert_eq!(range(32 + 96 + 8, Ip::v4([10, 0, 0, 0])), "10.0.0.0/8");
        assert_eq!(
            range(32 + 128, Ip::v6([0xfd; 16])),
            "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd/128"
        );
    }

    #[test]
    fn clients_and_ages_read_as_people_write_them() {
        assert_eq!(client(Ip::v4([10, 0, 0, 1])), "10.0.0.1");
        assert_eq!(client(Ip::v6([0xfd; 16])), "fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd");
        assert_eq!(client(Ip::cookie(5 << 32 | 7)), "cookie:21474836487");
        assert_eq!([0, 59, 192, 7_500].map(age), ["0s", "59s", "3m12s", "2h05m"]);
    }
}
