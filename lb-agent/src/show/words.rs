//! Keys and values of the maps in words.

use std::net::{IpAddr, SocketAddr};

use lb_common::addr::{Ip, Port, Protocol};
use lb_common::service::{Flags, Frontend};

/// An address as people write it.
pub(crate) fn ip(ip: Ip) -> IpAddr {
    if ip.is_v4() { IpAddr::from(ip.v4_octets()) } else { IpAddr::from(ip.octets()) }
}

/// Address and port.
pub(crate) fn endpoint(at: Ip, port: Port) -> SocketAddr {
    SocketAddr::new(ip(at), port.get())
}

/// `TCP`, `UDP`, `SCTP`, or the number.
pub(crate) fn protocol(protocol: Protocol) -> String {
    match protocol {
        Protocol::TCP => "TCP".into(),
        Protocol::UDP => "UDP".into(),
        Protocol::SCTP => "SCTP".into(),
        Protocol(number) => number.to_string(),
    }
}

/// `10.96.0.1:80/TCP`; a `NodePort` is `*:30080/TCP` or `[*]:30080/TCP`.
pub(crate) fn frontend(frontend: &Frontend) -> String {
    let protocol = protocol(frontend.protocol);
    let port = frontend.port.get();
    let at = frontend.ip;
    if at == Ip::ANY_V4 {
        format!("*:{port}/{protocol}")
    } else if at == Ip::ANY_V6 {
        format!("[*]:{port}/{protocol}")
    } else {
        format!("{}/{protocol}", endpoint(at, frontend.port))
    }
}

/// What kind of frontend an entry is.
pub(crate) const fn kind(flags: Flags) -> &'static str {
    if flags.has(Flags::NODE_PORT) {
        "NodePort"
    } else if flags.has(Flags::EXTERNAL) {
        "External"
    } else {
        "ClusterIP"
    }
}
