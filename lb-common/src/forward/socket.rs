//! The socket hooks: they connect a TCP socket of this host to a backend directly, and show it the frontend.
//!
//! The choice is the same as for packets; the flow's source is the socket. These calls are left to the packet hooks
//! (`rare/host`, `socketLB: all`):
//!
//! - a call whose packets would be dropped,
//! - a call that depends on the address of its socket, which has none yet (`ClientIP` affinity does),
//! - a call from a port or an address that the process chose,
//! - a call of a datagram socket: one that stays connected to the frontend follows every change of its backends.

use crate::addr::{Endpoint, Ip, Port, Protocol};
use crate::config::Settings;
use crate::event::Event;
use crate::flow::{Peer, Tuple};
use crate::forward::classify::{self, Class};
use crate::forward::{Asker, Choice, Refusal, choose};
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
    /// The transport protocol of the socket.
    pub protocol: Protocol,
    /// The cookie of the socket, part of the hash that chooses the backend.
    pub socket: u64,
    /// The cookie of the socket's network namespace.
    pub netns: u64,
}

/// The end of a socket call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The address of the call stays as it is.
    Leave,
    /// The address of the call becomes this one.
    Use(Endpoint),
    /// The call fails: connection refused.
    Refuse,
}

/// Handles `connect(2)` of a TCP socket: chooses a backend for a call to a possible frontend.
#[inline(always)]
pub fn connect<T: Clock + Node + Services>(
    tables: &T,
    choice: &mut Choice,
    call: &Call,
    named: Named,
) -> Outcome {
    if let Err(outcome) =
        find(tables, choice, call, named).and_then(|()| pick(tables, choice, call))
    {
        return outcome;
    }
    tables.count(Event::SocketTranslated);
    // No flow is written: the socket itself is connected to the backend, so its packets need no translation (ADR 0027).
    Outcome::Use(Endpoint::new(choice.backend.ip, choice.backend.port))
}

/// Handles `getpeername(2)`: the peer of a connected socket is shown as the frontend. `peer`: the record of
/// [`connect`].
#[inline(always)]
pub fn peer_name<T: Clock + Node + Services>(
    tables: &T,
    peer: Option<&Peer>,
    remote: &Endpoint,
) -> Outcome {
    match peer {
        // The record may be that of an earlier connect(2), if no hook has seen a later one.
        Some(peer) if peer.backend == *remote => {
            tables.count(Event::SocketRestored);
            Outcome::Use(peer.frontend)
        }
        Some(_) | None => Outcome::Leave,
    }
}

/// Whether calls of this network namespace are handled at all: checked before any other function of this module.
#[inline(always)]
pub fn is_served<T: Clock + Node + Services>(tables: &T, call: &Call) -> bool {
    tables.settings().is_some_and(|settings| match settings.node.socket_mode {
        Settings::SOCKETS_HOST => settings.node.netns_cookie == call.netns,
        Settings::SOCKETS_ALL => true,
        _ => false,
    })
}

/// A possible frontend that a call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// A `NodePort` at a loopback address.
    Loopback,
    /// Another address. `is_in_ranges`: it may be a ClusterIP, or its port a `NodePort`; otherwise one lookup decides.
    Address { is_in_ranges: bool },
}

/// The possible frontend that a call names. `None`: the hooks leave the call. Needs no working memory and no lookup.
#[inline(always)]
pub fn named<T: Clock + Node + Services>(tables: &T, call: &Call) -> Option<Named> {
    let settings = tables.settings()?;
    // While the data path drains, the rules of its successor translate the packets of new connections (ADR 0031).
    if settings.has(Settings::DRAIN) || has_port(call) || has_address(call) {
        return None;
    }
    let Endpoint { ip, port, .. } = call.remote;
    if ip.is_loopback() {
        // The loopback address of a pod belongs to the pod's own namespace.
        let is_own = settings.node.netns_cookie == call.netns;
        return (is_own && settings.has(Settings::LOOPBACK_NODE_PORTS)).then_some(Named::Loopback);
    }
    match classify::frontend(settings, &ip, port, ip.is_v4()) {
        Class::Frontend { is_in_ranges } => Some(Named::Address { is_in_ranges }),
        Class::Answer | Class::Backend | Class::NoService => None,
    }
}

/// Finds the service that a call names, into `choice`; the error is the outcome of a call that names none.
#[inline(always)]
fn find<T: Clock + Node + Services>(
    tables: &T,
    choice: &mut Choice,
    call: &Call,
    named: Named,
) -> Result<(), Outcome> {
    let settings = tables.settings().ok_or(Outcome::Leave)?;
    let Endpoint { ip, port, .. } = call.remote;
    match named {
        Named::Loopback => {
            let frontend = Frontend::node_port(ip, port, call.protocol);
            if !tables.service(&frontend, &mut choice.service) {
                return Err(Outcome::Leave);
            }
        }
        Named::Address { is_in_ranges } => {
            choice.frontend = Frontend::new(ip, port, call.protocol);
            choose::locate(tables, settings, choice, is_in_ranges)
                .map_err(|refusal| refused(tables, refusal))?;
        }
    }
    let is_own = settings.node.netns_cookie == call.netns;
    if depends_on_address(settings, &choice.service, is_own) { Err(Outcome::Leave) } else { Ok(()) }
}

/// Whether the port of the socket was chosen before the call.
///
/// Another socket may connect from that port to another frontend of the same backend, and the kernel refuses a second
/// connection between the same ends (EADDRNOTAVAIL). Translated packets have ports of the reserved range.
#[inline(always)]
fn has_port(call: &Call) -> bool {
    call.local.port != Port::NONE
}

/// Whether the address of the socket was chosen before the call.
///
/// Source ranges see that address, the kernel sends nothing from a loopback address to another host, and replies of
/// other nodes may find no route back to it: through a tunnel the source must be the tunnel's address. Translated
/// packets get the source of their route.
#[inline(always)]
fn has_address(call: &Call) -> bool {
    !call.local.ip.is_unspecified()
}

/// Whether the client's address decides the outcome of a call.
///
/// The socket has no address yet ([`has_address`]): its packets are translated, at an interface where the address is
/// known. For sockets of the host this holds with affinity only. The key of affinity is the source address (contract
/// 4), also for a process that is bound to a port and sends packets.
#[inline(always)]
pub const fn depends_on_address(settings: &Settings, service: &Service, is_host: bool) -> bool {
    let flags = service.flags;
    service.affinity != 0
        || !is_host
            && (flags.has(Flags::SOURCE_RANGES)
                || flags.has(Flags::EXTERNAL) && flags.has(Flags::LOCAL_POLICY)
                || settings.has(Settings::MASQUERADE_KUBE_PROXY))
}

/// The outcome of a refusal at a socket: a rejection is an errno; a silent drop is left to the packet hooks.
#[inline(always)]
fn refused<T: Clock + Node + Services>(tables: &T, refusal: Refusal) -> Outcome {
    match refusal {
        Refusal::Reject(_) => {
            tables.count(Event::SocketRefused);
            Outcome::Refuse
        }
        // The packets are dropped in silence, so that a process sees what a pod sees (ADR 0008).
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
    // An unbound socket has no address yet: source ranges see that of the Node (ADR 0011).
    let source = settings.node.address(call.remote.ip.is_v4());
    // The cookie stands for the source, which the socket does not have yet, so that each socket has a choice of its
    // own.
    let tuple = Tuple::new(Endpoint::new(Ip::cookie(call.socket), Port::NONE), call.remote);
    let hash = hash::tuple(&tuple, call.protocol);
    // External policy Local binds neither pods of this node nor the node itself (contract 2.4).
    choice.asker = Asker { client: source, source, hash, local: 1 };
    choose::choose(tables, choice, tables.now()).map_err(|refusal| refused(tables, refusal))
}

#[cfg(test)]
mod tests;
