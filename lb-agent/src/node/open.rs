//! Open connections (ADR 0035): those of this node's processes and of pods that netfilter masquerades with the node's
//! address, by their own ends; and those to an address outside, by that address.

use std::collections::HashSet;
use std::io::Result;

use lb_common::addr::{Endpoint, Protocol};
use lb_common::flow::Tuple;
use lb_common::hash;
use lb_common::service::Frontend;

use super::sockets::{self, Socket, WalkStep};
use crate::netfilter::conntrack::{self, Connection, Which};

/// Returns the tuples of packets that go to a TCP destination that `is_meant` selects.
///
/// They belong to answered connections of sockets of this node, or tracked by netfilter. With `counts_translated`,
/// those are among them whose destination netfilter translates: for a port of a container (`hostPort`), or for another
/// proxy.
pub fn towards(
    is_meant: impl Fn(&Frontend) -> bool,
    counts_translated: bool,
) -> Result<Vec<Tuple>> {
    let tcp = Protocol::TCP;
    let mut found = Vec::new();
    sockets::walk(|Socket { local, peer, waits, opens }| {
        if local.protocol != tcp {
            return WalkStep::Table;
        }
        if !waits && !opens && is_meant(&Frontend::new(peer.ip, peer.port, tcp)) {
            found.push(Tuple::new(Endpoint::new(local.ip, local.port), *peer));
        }
        WalkStep::Row
    })?;
    let tracked = conntrack::list(Which::Either, |connection| {
        let Connection { original: to, protocol, .. } = connection;
        *protocol == tcp
            && connection.is_answered()
            && is_meant(&Frontend::new(to.destination, to.destination_port, tcp))
    });
    // Without conntrack nothing is translated, and connections through this node are unknown.
    let (translated, kept): (Vec<Connection>, Vec<Connection>) =
        tracked.unwrap_or_default().into_iter().partition(Connection::is_translated);
    let original = |connection: Connection| connection.original;
    let translated = translated.into_iter().map(original);
    if counts_translated {
        found.extend(translated);
    } else {
        // A socket of such a connection has the frontend as its peer as well.
        let hashes: HashSet<u64> = translated.map(|it| hash::whole(&it, tcp)).collect();
        found.retain(|tuple| !hashes.contains(&hash::whole(tuple, tcp)));
    }
    found.extend(kept.into_iter().map(original));
    Ok(found)
}

/// Returns the tuples of packets that arrive for connected sockets, for local ends that `is_meant` selects.
pub fn sockets(is_meant: impl Fn(&Frontend) -> bool) -> Result<Vec<(Protocol, Tuple)>> {
    let mut found = Vec::new();
    sockets::walk(|Socket { local, peer, waits, .. }| {
        // A socket without a peer accepts packets from any client, so they may be requests.
        if !waits && is_meant(local) {
            let own = Endpoint::new(local.ip, local.port);
            found.push((local.protocol, Tuple::new(*peer, own)));
        }
        WalkStep::Row
    })?;
    Ok(found)
}

/// Returns the tuples of replies to connections that netfilter tracks, for destinations that `is_meant` selects.
pub fn followed(is_meant: impl Fn(&Frontend) -> bool) -> Result<Vec<(Protocol, Tuple)>> {
    let kept = conntrack::list(Which::Kept, |Connection { reply: to, protocol, .. }| {
        is_meant(&Frontend::new(to.destination, to.destination_port, *protocol))
    })?;
    Ok(kept.into_iter().map(|connection| (connection.protocol, connection.reply)).collect())
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use lb_common::addr::{Ip, Port};

    use super::*;

    #[test]
    fn connected_sockets_are_found_by_their_own_end() -> Result<()> {
        for ip in ["127.0.0.1", "::1"] {
            let listener = TcpListener::bind((ip, 0))?;
            let client = TcpStream::connect(listener.local_addr()?)?;
            let (own, peer) = (client.local_addr()?, client.peer_addr()?);
            let end = |of: SocketAddr| Endpoint::new(Ip::from(of.ip()), Port::new(of.port()));
            let local = Frontend::new(end(own).ip, end(own).port, Protocol::TCP);
            let mut found = sockets(|it| *it == local)?;
            // The kernel may give the port to a connection of another test, too, with another peer.
            found.retain(|(_, tuple)| tuple.source_port == end(peer).port);
            assert_eq!(found, [(Protocol::TCP, Tuple::new(end(peer), end(own)))]);
            let server = Frontend::new(end(peer).ip, end(peer).port, Protocol::TCP);
            // Netfilter may track the connection as well.
            let mut found = towards(|it| *it == server, true)?;
            found.dedup();
            assert_eq!(found, [Tuple::new(end(own), end(peer))]);
        }
        Ok(())
    }
}
