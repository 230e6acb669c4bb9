//! Sockets of the node, for programs that query the kernel's tables of sockets.
//!
//! No packet is sent: a UDP socket is connected, and a TCP socket is established, by `TCP_REPAIR` (Linux 3.5).

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::{Ip, Port, Protocol};
use lb_common::flow::Tuple;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

/// The mark of these sockets, which leads to a routing table with a route to every address. Packets have no mark.
pub(super) const MARK: u32 = 0x736f;

/// Opens a socket that gets packets of this tuple.
pub(super) fn open(protocol: Protocol, tuple: &Tuple) -> Result<Socket> {
    let end = |ip: Ip, port: Port| SocketAddr::new(ip.into(), port.get());
    let peer = end(tuple.source, tuple.source_port);
    let own = end(tuple.destination, tuple.destination_port);
    let is_tcp = protocol == Protocol::TCP;
    ensure!(is_tcp || protocol == Protocol::UDP, "{protocol:?} has no lookup of sockets");
    let kind = if is_tcp { Type::STREAM } else { Type::DGRAM };
    let socket = Socket::new(Domain::for_address(own), kind, None)?;
    socket.set_mark(MARK)?;
    // The fixtures' addresses of the node are on no interface.
    if own.is_ipv4() {
        socket.set_ip_transparent_v4(true)?;
    } else {
        socket.set_freebind_v6(true)?;
    }
    socket.bind(&own.into()).with_context(|| format!("bind to {own}"))?;
    if is_tcp {
        setsockopt(&socket, sockopt::TcpRepair, &1).context("TCP_REPAIR")?;
    }
    socket.connect(&peer.into()).with_context(|| format!("connect to {peer}"))?;
    Ok(socket)
}
