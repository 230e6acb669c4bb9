//! Sockets of the node, for programs that query the kernel's tables of sockets.
//!
//! No packet is sent: a UDP socket is connected, and a TCP socket is established, by `TCP_REPAIR` (Linux 3.5).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result, bail};
use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use lb_common::flow::Tuple;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use super::routes;

/// The mark of these sockets, which leads to a routing table with a route to every address. Packets have no mark.
pub(super) const MARK: u32 = 0x736f;

/// The type of a transport's sockets.
fn kind(protocol: Protocol) -> Result<Type> {
    match protocol {
        Protocol::TCP => Ok(Type::STREAM),
        Protocol::UDP => Ok(Type::DGRAM),
        _ => bail!("{protocol:?} has no lookup of sockets"),
    }
}

/// Opens a socket that waits at the port of an end of the node, at every address: a listener, or an unconnected one.
pub(super) fn wait(protocol: Protocol, own: &Endpoint) -> Result<Socket> {
    let port = own.port.get();
    let all: SocketAddr = if own.ip.is_v4() {
        (Ipv4Addr::UNSPECIFIED, port).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, port).into()
    };
    let socket = Socket::new(Domain::for_address(all), kind(protocol)?, None)?;
    socket.bind(&all.into()).with_context(|| format!("bind to {all}"))?;
    if protocol == Protocol::TCP {
        socket.listen(1)?;
    }
    Ok(socket)
}

/// Opens a socket that gets packets of this tuple.
pub(super) fn open(protocol: Protocol, tuple: &Tuple) -> Result<Socket> {
    let end = |ip: Ip, port: Port| SocketAddr::new(ip.into(), port.get());
    let peer = end(tuple.source, tuple.source_port);
    let own = end(tuple.destination, tuple.destination_port);
    let socket = Socket::new(Domain::for_address(own), kind(protocol)?, None)?;
    routes::lead_sockets().context("routes of sockets")?;
    socket.set_mark(MARK)?;
    // The fixtures' addresses of the node are on no interface.
    if own.is_ipv4() {
        socket.set_ip_transparent_v4(true)?;
    } else {
        socket.set_freebind_v6(true)?;
    }
    socket.bind(&own.into()).with_context(|| format!("bind to {own}"))?;
    if protocol == Protocol::TCP {
        setsockopt(&socket, sockopt::TcpRepair, &1).context("TCP_REPAIR")?;
    }
    socket.connect(&peer.into()).with_context(|| format!("connect to {peer}"))?;
    Ok(socket)
}
