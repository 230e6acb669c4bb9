//! The socket hooks: a TCP socket of this host is connected to a backend directly, and shown the frontend.
//!
//! The same choice as for packets; the flow's source is the socket. A call whose packets would be dropped, one that
//! depends on an address that its socket has or is yet to get (`ClientIP` affinity does), and one from a port that the
//! process chose, are left to the packets (`rare/host`, `socketLB: all`). So are all datagrams: a socket that stays
//! connected to the frontend follows every change of its backends.

use crate::addr::{Endpoint, Ip, Port, Protocol};
use crate::config::Settings;
use crate::event::Event;
use crate::flow::{Peer, Tuple};
use crate::forward::{Asker, Choice, Refusal, choose, classify};
use crate::hash;
use crate::service::{Flags, Frontend, Service};
use crate::tables::{Clock, Node, Services};

/// The facts about a socket call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The address that the process named, or that the kernel is about to show it; IPv4 mapped.
    pub remote: Endpoint,
    /// The address and port that the socket is bound to; unspecified and 0 where it is bound to none.
    pub local: Endpoint,
    /// Protocol of the socket.
    pub protocol: Protocol,
    /// The socket's cookie.
    pub socket: u64,
    /// Cookie of its network namespace.
    pub netns: u64,
}

/// The end of a socket call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The address stays.
    Leave,
    /// The address becomes this one.
    Use(Endpoint),
    /// The call fails: connection refused.
    Refuse,
}

/// `connect(2)` of a TCP socket.
#[inline(always)]
pub fn connect<T: Clock + Node + Services>(
    tables: &T,
    choice: &mut Choice,
    call: &Call,
) -> Outcome {
    if let Err(outcome) = find(tables, choice, call).and_then(|()| pick(tables, choice, call)) {
        return outcome;
    }
    tables.count(Event::SocketTranslated);
    Outcome::Use(Endpoint::new(choice.backend.ip, choice.backend.port))
}

/// `getpeername(2)`: the peer of a connected socket is shown as the frontend. `peer`: what [`connect`] made of it.
#[inline(always)]
pub fn peer_name<T: Clock + Node + Services>(
    tables: &T,
    peer: Option<&Peer>,
    remote: &Endpoint,
) -> Outcome {
    match peer {
        Some(peer) if peer.backend == *remote => {
            tables.count(Event::SocketRestored);
            Outcome::Use(peer.frontend)
        }
        Some(_) | None => Outcome::Leave,
    }
}

/// Whether calls of this network namespace are answered at all: asked before any other function of this module.
#[inline(always)]
pub fn is_served<T: Clock + Node + Services>(tables: &T, call: &Call) -> bool {
    tables.settings().is_some_and(|settings| match settings.node.socket_mode {
        Settings::SOCKETS_HOST => settings.node.netns_cookie == call.netns,
        Settings::SOCKETS_ALL => true,
        _ => false,
    })
}

/// The service a call names, into `choice`; what to do instead when it names none.
#[inline(always)]
fn find<T: Clock + Node + Services>(
    tables: &T,
    choice: &mut Choice,
    call: &Call,
) -> Result<(), Outcome> {
    let settings = tables.settings().ok_or(Outcome::Leave)?;
    if settings.has(Settings::DRAIN) {
        return Err(Outcome::Leave);
    }
    let Endpoint { ip, port, .. } = call.remote;
    let is_own = settings.node.netns_cookie == call.netns;
    if has_port(call) || is_bound_elsewhere(settings, call) {
        return Err(Outcome::Leave);
    }
    if ip.is_loopback() {
        // A pod's loopback is its own.
        if !is_own || !settings.has(Settings::LOOPBACK_NODE_PORTS) {
            return Err(Outcome::Leave);
        }
        let frontend = Frontend::node_port(ip, port, call.protocol);
        if !tables.service(&frontend, &mut choice.service) {
            return Err(Outcome::Leave);
        }
    } else {
        choice.frontend = Frontend::new(ip, port, call.protocol);
        let is_in_ranges = classify::is_in_ranges(settings, &ip, port, ip.is_v4());
        choose::locate(tables, settings, choice, is_in_ranges)
            .map_err(|refusal| refused(tables, refusal))?;
    }
    if depends_on_address(settings, &choice.service, is_own) { Err(Outcome::Leave) } else { Ok(()) }
}

/// Whether the port of the socket was chosen before: another socket may connect from it to another frontend of the same
/// backend, and the kernel refuses a second connection of equal ends (EADDRNOTAVAIL). Packets have ports of ours.
#[inline(always)]
fn has_port(call: &Call) -> bool {
    call.local.port != Port::NONE
}

/// Whether the socket is bound to an address that is not the node's own one:
/// source ranges see that, and answers of other nodes may not find back to it.
#[inline(always)]
fn is_bound_elsewhere(settings: &Settings, call: &Call) -> bool {
    let local = &call.local.ip;
    !local.is_unspecified()
        && !local.is_loopback()
        && *local != settings.node.address4
        && *local != settings.node.address6
}

/// Whether the client's address decides what becomes of a call. Its socket need not have one yet: then its packets are
/// translated, where their interface knows it.
///
/// For sockets of the host that is so with affinity only. Its key is the source address
/// (contract 4), also of a process that is bound to a port and sends packets.
#[inline(always)]
pub const fn depends_on_address(settings: &Settings, service: &Service, is_host: bool) -> bool {
    let flags = service.flags;
    service.affinity != 0
        || !is_host
            && (flags.has(Flags::SOURCES)
                || flags.has(Flags::EXTERNAL) && flags.has(Flags::LOCAL_POLICY)
                || settings.has(Settings::MASQUERADE_KUBE_PROXY))
}

/// The result of a refusal at a socket: a rejection is an errno, silence is the packet's business.
#[inline(always)]
fn refused<T: Clock + Node + Services>(tables: &T, refusal: Refusal) -> Outcome {
    match refusal {
        Refusal::Reject(_) => {
            tables.count(Event::SocketRefused);
            Outcome::Refuse
        }
        Refusal::Drop(_) | Refusal::Pass(_) => Outcome::Leave,
    }
}

#[inline(always)]
fn pick<T: Clock + Node + Services>(
    tables: &T,
    choice: &mut Choice,
    call: &Call,
) -> Result<(), Outcome> {
    let settings = tables.settings().ok_or(Outcome::Leave)?;
    let source = settings.node.address(call.remote.ip.is_v4());
    let tuple = Tuple::new(Endpoint::new(Ip::cookie(call.socket), Port::NONE), call.remote);
    let hash = hash::tuple(&tuple, call.protocol);
    choice.asker = Asker { client: source, source, hash, local: 1 };
    choose::choose(tables, choice, tables.now()).map_err(|refusal| refused(tables, refusal))
}

#[cfg(test)]
mod tests;
