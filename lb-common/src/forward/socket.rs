//! The socket hooks: a process of this host is sent to a backend directly, and shown the frontend.
//!
//! The same choice as for packets; the client is the network namespace (its cookie), the flow's
//! source the socket. What must be dropped silently is left to the packet (see `host`), and so is what
//! depends on the address of a pod (`socketLB: all`).

use super::{Refusal, choose, flows};
use crate::addr::{Endpoint, Ip, Port, Protocol};
use crate::config::Settings;
use crate::event::Event;
use crate::flow::{Flow, FlowKey, Kind, Peer, Side, Tuple, state};
use crate::hash;
use crate::scratch::{Asker, Scratch};
use crate::service::{Flags, Frontend, Service};
use crate::tables::Tables;

/// What a socket call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The address the process named (or the sender, on receive), IPv4 mapped.
    pub remote: Endpoint,
    /// Protocol of the socket.
    pub protocol: Protocol,
    /// The socket's cookie.
    pub socket: u64,
    /// Cookie of its network namespace.
    pub netns: u64,
}

/// What becomes of a socket call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do.
    Leave,
    /// The address becomes this one.
    Use(Endpoint),
    /// The call fails: connection refused.
    Refuse,
}

/// `connect(2)`, of TCP and UDP sockets.
#[inline(always)]
pub fn connect<T: Tables>(tables: &T, scratch: &mut Scratch, call: &Call) -> Outcome {
    if let Err(outcome) = find(tables, scratch, call).and_then(|()| pick(tables, scratch, call)) {
        return outcome;
    }
    let backend = Endpoint::new(scratch.backend.ip, scratch.backend.port);
    let peer = Peer {
        frontend: call.remote,
        backend,
        id: scratch.backend_id,
        epoch: scratch.backend.epoch,
    };
    // Without room getpeername shows the backend; the connection works all the same.
    let _: bool = tables.put_socket(call.socket, &peer);
    tables.count(Event::SocketTranslated);
    Outcome::Use(backend)
}

/// `sendmsg(2)` of an unconnected UDP socket.
#[inline(always)]
pub fn send<T: Tables>(tables: &T, scratch: &mut Scratch, call: &Call) -> Outcome {
    if let Err(outcome) = find(tables, scratch, call) {
        return outcome;
    }
    let socket = Endpoint::new(Ip::cookie(call.socket), Port::NONE);
    scratch.key = FlowKey::new(Tuple::new(socket, call.remote), call.protocol, Side::SOCKET);
    let now = tables.now();
    if tables.flow_of::<false>(&scratch.key, &mut scratch.flow)
        && flows::is_live(tables, &scratch.flow, scratch.service.id)
    {
        let flow = &scratch.flow;
        if now.saturating_sub(flow.seen) >= choose::SECOND {
            tables.touch_flow(&scratch.key, now, 0);
        }
        let backend = Endpoint::new(flow.to.destination, flow.to.destination_port);
        scratch.key.write_other(&scratch.flow, &mut scratch.twin_key);
        let known = tables.flow_of::<false>(&scratch.twin_key, &mut scratch.twin);
        if !known
            || Endpoint::new(scratch.twin.to.source, scratch.twin.to.source_port) != call.remote
        {
            // The socket asked the same backend through another frontend since: the answer is to this question.
            scratch.flow.seen = now;
            let _: bool = put_answer(tables, scratch);
        }
        return Outcome::Use(backend);
    }
    if let Err(outcome) = pick(tables, scratch, call) {
        return outcome;
    }
    let backend = Endpoint::new(scratch.backend.ip, scratch.backend.port);
    scratch.flow = Flow::new(Tuple::new(socket, backend), Kind::FORWARD, now);
    scratch.flow.service = scratch.service.id;
    scratch.flow.backend = scratch.backend_id;
    scratch.flow.epoch = scratch.backend.epoch;
    // Without room the datagram still goes; only the sender shown on receive is the backend then.
    if put_answer(tables, scratch) && !tables.put_flow(&scratch.key, &scratch.flow) {
        tables.remove_flow(&scratch.twin_key);
    }
    tables.count(Event::SocketTranslated);
    Outcome::Use(backend)
}

/// Writes the half that shows an answer to `scratch.flow` as the frontend's. False when there is no room.
#[inline(always)]
fn put_answer<T: Tables>(tables: &T, scratch: &mut Scratch) -> bool {
    scratch.flow.write_half(Kind::REPLY, &mut scratch.twin);
    scratch.key.tuple.write_reversed(&mut scratch.twin.to);
    scratch.key.write_other(&scratch.flow, &mut scratch.twin_key);
    tables.put_flow(&scratch.twin_key, &scratch.twin)
}

/// `recvmsg(2)` of a UDP socket: the sender is shown as the frontend.
#[inline(always)]
pub fn receive<T: Tables>(tables: &T, scratch: &mut Scratch, call: &Call) -> Outcome {
    let socket = Endpoint::new(Ip::cookie(call.socket), Port::NONE);
    scratch.key = FlowKey::new(Tuple::new(call.remote, socket), call.protocol, Side::SOCKET);
    if !tables.flow_of::<false>(&scratch.key, &mut scratch.flow) {
        return peer_name(tables, call);
    }
    let flow = &scratch.flow;
    let now = tables.now();
    if now.saturating_sub(flow.seen) >= choose::SECOND || flow.state == 0 {
        tables.touch_flow(&scratch.key, now, state::ESTABLISHED);
    }
    tables.count(Event::SocketRestored);
    Outcome::Use(Endpoint::new(flow.to.source, flow.to.source_port))
}

/// `getpeername(2)`: the peer of a connected socket is shown as the frontend.
#[inline(always)]
pub fn peer_name<T: Tables>(tables: &T, call: &Call) -> Outcome {
    match tables.socket(call.socket) {
        Some(peer) if peer.backend == call.remote => {
            tables.count(Event::SocketRestored);
            Outcome::Use(peer.frontend)
        }
        Some(_) | None => Outcome::Leave,
    }
}

/// Whether calls of this network namespace are answered at all: asked before any other function of this module.
#[inline(always)]
pub fn is_served<T: Tables>(tables: &T, call: &Call) -> bool {
    tables.settings().is_some_and(|settings| match settings.socket_mode {
        Settings::SOCKETS_HOST => settings.netns_cookie == call.netns,
        Settings::SOCKETS_ALL => true,
        _ => false,
    })
}

/// The service a call names, into `scratch`; what to do instead when it names none.
#[inline(always)]
fn find<T: Tables>(tables: &T, scratch: &mut Scratch, call: &Call) -> Result<(), Outcome> {
    let settings = tables.settings().ok_or(Outcome::Leave)?;
    let Endpoint { ip, port, .. } = call.remote;
    let is_own = settings.netns_cookie == call.netns;
    if ip.is_loopback() {
        // A pod's loopback is its own.
        if !is_own || !settings.has(Settings::LOOPBACK_NODE_PORTS) {
            return Err(Outcome::Leave);
        }
        let frontend = Frontend::node_port(ip, port, call.protocol);
        let there = tables.service(&frontend, &mut scratch.service);
        return if there { Ok(()) } else { Err(Outcome::Leave) };
    }
    scratch.frontend = Frontend::new(ip, port, call.protocol);
    let is_near = choose::is_near(settings, &ip, port, ip.is_v4());
    choose::locate(tables, settings, scratch, is_near)
        .map_err(|refusal| refused(tables, refusal))?;
    if is_own || !depends_on_address(settings, &scratch.service) {
        Ok(())
    } else {
        Err(Outcome::Leave)
    }
}

/// Whether a pod's address decides what becomes of its call. Its socket need not have one yet: then its packets are
/// translated, where its device knows it.
#[inline(always)]
const fn depends_on_address(settings: &Settings, service: &Service) -> bool {
    let flags = service.flags;
    service.affinity != 0
        || flags.has(Flags::SOURCES)
        || flags.has(Flags::EXTERNAL) && flags.has(Flags::LOCAL_POLICY)
        || settings.has(Settings::MASQUERADE_KUBE_PROXY)
}

/// What a refusal means to a socket: a rejection is an errno, silence is the packet's business.
#[inline(always)]
fn refused<T: Tables>(tables: &T, refusal: Refusal) -> Outcome {
    match refusal {
        Refusal::Reject(_) => {
            tables.count(Event::SocketRefused);
            Outcome::Refuse
        }
        Refusal::Drop(_) | Refusal::Pass(_) => Outcome::Leave,
    }
}

#[inline(always)]
fn pick<T: Tables>(tables: &T, scratch: &mut Scratch, call: &Call) -> Result<(), Outcome> {
    let settings = tables.settings().ok_or(Outcome::Leave)?;
    let source = if call.remote.ip.is_v4() { settings.node4 } else { settings.node6 };
    let client = Ip::cookie(call.netns);
    let tuple = Tuple::new(Endpoint::new(Ip::cookie(call.socket), Port::NONE), call.remote);
    let hash = hash::tuple(&tuple, call.protocol);
    scratch.asker = Asker { client, source, hash, local: 1 };
    let now = tables.now();
    choose::choose(tables, scratch, now).map_err(|refusal| refused(tables, refusal))?;
    choose::remember(tables, scratch, client, now);
    Ok(())
}

#[cfg(test)]
mod tests;
