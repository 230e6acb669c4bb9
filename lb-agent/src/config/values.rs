//! Parsers for values of flags and files: durations in Go's notation, addresses, prefixes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use jiff::SignedDuration;

use crate::plan::Family;
use crate::snapshot::prefix;

/// Parses a boolean as Go does: `1`, `t`, `true`, and so on.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".into()),
    }
}

/// Parses a feature gate with its value: `AllowServiceExternalIPs=false`.
pub fn gate(text: &str) -> Result<(String, bool), String> {
    let (name, value) = text.split_once('=').ok_or("write GATE=true or GATE=false")?;
    Ok((name.trim().to_owned(), boolean(value.trim())?))
}

/// Parses a duration in Go's notation: `1h30m`, `500ms`, `0`.
pub fn duration(text: &str) -> Result<Duration, String> {
    // Go accepts a zero without a unit.
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let duration: SignedDuration = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    Duration::try_from(duration).map_err(|error| error.to_string())
}

/// Formats a duration so that Go reads exactly this value.
pub fn format_duration(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_nanos()) {
        (seconds, 0) => format!("{seconds}s"),
        (_, nanos) if nanos % 1_000_000 == 0 => format!("{}ms", duration.as_millis()),
        _ => format!("{}ns", duration.as_nanos()),
    }
}

/// Parses up to one prefix of each family, separated by a comma.
pub fn cidr_pair(text: &str) -> Result<Vec<IpNet>, String> {
    let mut pair: Vec<IpNet> = Vec::new();
    for part in text.split(',').map(str::trim) {
        let cidr = prefix(part).ok_or_else(|| format!("{part:?} is not a prefix"))?;
        if pair.iter().any(|other| family(other) == family(&cidr)) {
            return Err("two prefixes of the same family".into());
        }
        pair.push(cidr);
    }
    Ok(pair)
}

/// Returns the family of a prefix.
pub const fn family(cidr: &IpNet) -> Family {
    match cidr {
        IpNet::V4(_) => Family::V4,
        IpNet::V6(_) => Family::V6,
    }
}

/// Port of the health server, which the probes of `deploy/daemonset.yaml` ask.
pub(super) const HEALTHZ: u16 = 10_256;
/// Port of the metrics server.
pub(super) const METRICS: u16 = 10_249;

/// Parses an address to listen on; `port` is the default port.
pub fn listener(text: &str, port: u16) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    if let Some(port) = text.strip_prefix(':').filter(|rest| !rest.starts_with(':')) {
        // In Go, an empty host means every address of both families.
        let port = port.parse().map_err(|error| format!("{port:?} is not a port: {error}"))?;
        return Ok(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port));
    }
    let ip: Result<IpAddr, _> = text.trim_start_matches('[').trim_end_matches(']').parse();
    ip.map(|ip| SocketAddr::new(ip, port)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them() {
        let cases = [("0", 0), ("0s", 0), ("24h0m0s", 86_400_000), ("1h0m0s", 3_600_000)];
        for (text, milliseconds) in [("500ms", 500), ("1m30s", 90_000)].into_iter().chain(cases) {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["24h0m0s", "1m30s", "500ms", "1500us", "7ns"] {
            let read = duration(text).unwrap();
            assert_eq!(duration(&format_duration(read)), Ok(read), "{text}");
        }
        for text in ["", "30", "-1s", "soon"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn listeners_may_leave_out_their_port() {
        let cases = [
            ("0.0.0.0", "0.0.0.0:10256"),
            ("::1", "[::1]:10256"),
            ("[::]", "[::]:10256"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            (":9", "[::]:9"),
        ];
        for (text, expected) in cases {
            assert_eq!(listener(text, 10_256).unwrap().to_string(), expected);
        }
        assert!(listener("localhost:1", 1).is_err());
    }

    #[test]
    fn a_pair_has_one_prefix_of_each_family() {
        assert_eq!(cidr_pair("10.244.0.0/16, fd00::/48").unwrap().len(), 2);
        assert!(cidr_pair("10.0.0.0/8,10.1.0.0/16").is_err());
        assert!(cidr_pair("10.0.0.0").is_err());
    }
}
