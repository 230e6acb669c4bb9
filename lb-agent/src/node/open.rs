//! Connections of this node that were open before its programs saw a packet of them (ADR 0035): those of its processes, and
//! those of pods that netfilter masquerades as its own.

use std::io::Result;

use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use lb_common::flow::Tuple;

use super::sockets::{self, Next};
use crate::takeover;

/// The tuples of packets that arrive for connected sockets whose own end is meant.
pub fn sockets(is_meant: impl Fn(&Ip, Port, Protocol) -> bool) -> Result<Vec<(Protocol, Tuple)>> {
    let mut found = Vec::new();
    sockets::walk(|socket| {
        let local = &socket.local;
        if !socket.waits && is_meant(&local.ip, local.port, local.protocol) {
            let own = Endpoint::new(local.ip, local.port);
            found.push((local.protocol, Tuple::new(socket.peer, own)));
        }
        Next::Row
    })?;
    Ok(found)
}

/// The tuples of answers that netfilter follows, where they arrive at an end that is meant.
pub fn followed(is_meant: impl Fn(&Ip, Port, Protocol) -> bool) -> Result<Vec<(Protocol, Tuple)>> {
    let kept = takeover::kept(|connection| {
        let to = &connection.reply;
        is_meant(&to.destination, to.destination_port, connection.protocol)
    })?;
    Ok(kept.into_iter().map(|connection| (connection.protocol, connection.reply)).collect())
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;
    use crate::reconcile::wire;

    #[test]
    fn connected_sockets_are_found_by_their_own_end() -> Result<()> {
        for ip in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((ip, 0))?;
            let client = TcpStream::connect(listener.local_addr()?)?;
            let (own, peer) = (client.local_addr()?, client.peer_addr()?);
            let found = sockets(|address, port, protocol| {
                (*address, port.get()) == (wire(own.ip()), own.port()) && protocol == Protocol::TCP
            })?;
            let end = |of: SocketAddr| Endpoint::new(wire(of.ip()), Port::new(of.port()));
            assert_eq!(found, [(Protocol::TCP, Tuple::new(end(peer), end(own)))]);
        }
        Ok(())
    }
}
