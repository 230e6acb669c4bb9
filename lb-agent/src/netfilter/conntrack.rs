//! Connections in netfilter's conntrack: those that netfilter translates, by kube-proxy's rules for example, and those
//! that it does not.

use std::io;
use std::time::Duration;

use lb_common::addr::{Endpoint, Port, Protocol};
use lb_common::flow::Tuple;

use super::{CREATE, address, addressed, attribute, body, dump, find, nested, number, request};

/// `NFNL_SUBSYS_CTNETLINK` with `IPCTNL_MSG_CT_NEW`, `IPCTNL_MSG_CT_GET` and `IPCTNL_MSG_CT_DELETE`.
const NEW: u16 = 1 << 8;
const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
/// `CTA_TUPLE_ORIG` and others of `enum ctattr_type`.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOCOL: u16 = 4;
const TIMEOUT: u16 = 7;
const ID: u16 = 12;
const STATUS_MASK: u16 = 26;
/// `IPS_SEEN_REPLY`.
const ANSWERED: u32 = 1 << 1;
/// `IPS_DST_NAT`.
const DESTINATION: u32 = 1 << 5;
/// `TCP_CONNTRACK_TIME_WAIT` and `TCP_CONNTRACK_CLOSE`: both ends have closed.
const OVER: [u8; 2] = [7, 8];

/// A connection that netfilter tracks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    pub protocol: Protocol,
    /// From the client to the destination that it used.
    pub original: Tuple,
    /// From the backend to the address that it answers to.
    pub reply: Tuple,
    /// The attributes of the original tuple and of the id, by which the kernel identifies the entry. With the id it
    /// usually does not take a later connection with this tuple for it (`ctnetlink_del_conntrack`).
    named: Vec<u8>,
    family: u8,
    /// Seconds until its entry expires, if no packet comes.
    left: u32,
    is_translated: bool,
    is_over: bool,
    is_answered: bool,
}

impl Connection {
    /// Makes a connection that nothing translates.
    #[cfg(test)]
    pub(crate) const fn between(protocol: Protocol, original: Tuple) -> Self {
        let named = Vec::new();
        let (is_translated, is_over, is_answered) = (false, false, true);
        let reply = original.reversed();
        let (family, left) = (0, u32::MAX);
        Self { protocol, original, reply, named, family, left, is_translated, is_over, is_answered }
    }

    /// Reports whether netfilter translates its destination.
    pub const fn is_translated(&self) -> bool {
        self.is_translated
    }

    /// Reports whether it is a TCP connection that both ends have closed.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Reports whether its entry expires within a time, if no packet comes.
    pub const fn ends_within(&self, time: Duration) -> bool {
        self.left as u64 <= time.as_secs()
    }

    /// Makes an unanswered connection whose entry expires after this number of seconds.
    #[cfg(test)]
    pub(crate) const fn unanswered(mut self, seconds: u32) -> Self {
        (self.left, self.is_answered) = (seconds, false);
        self
    }

    /// Reports whether netfilter has seen a packet in each direction.
    pub const fn is_answered(&self) -> bool {
        self.is_answered
    }
}

/// The kinds of connections that can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Connections whose destination netfilter translates, those that have ended included.
    Translated,
    /// Connections that keep their destination and have not ended.
    Kept,
    /// Those of both kinds, in one list.
    Either,
    /// TCP connections that both ends have closed; netfilter remembers them for two minutes.
    Over,
}

impl Which {
    /// Returns the status under the mask `DESTINATION`, or `None` if any will do.
    const fn status(self) -> Option<u32> {
        match self {
            Self::Translated => Some(DESTINATION),
            Self::Kept => Some(0),
            Self::Either | Self::Over => None,
        }
    }
}

/// Returns the connections of a kind in this network namespace that `is_meant` selects.
pub(crate) fn list(
    which: Which,
    is_meant: impl Fn(&Connection) -> bool,
) -> io::Result<Vec<Connection>> {
    let mut all = Vec::new();
    // Before 6.0, Linux ignores the mask and lists all connections; the others are filtered out below.
    let status = which.status();
    let filter = |status| [number(STATUS, status), number(STATUS_MASK, DESTINATION)].concat();
    let status = status.map(filter).unwrap_or_default();
    dump(GET, libc::AF_UNSPEC as u8, &status, |family, attributes| {
        let found = connection(which, family, attributes).filter(&is_meant);
        // The name is copied only now: there may be a million connections, and few are meant.
        all.extend(found.map(|found| Connection { named: named(attributes), ..found }));
    })?;
    Ok(all)
}

/// Deletes a conntrack entry.
pub(crate) fn forget(connection: &Connection) -> io::Result<()> {
    delete(connection.family, &connection.named)
}

/// Deletes the entry of a connection that netfilter does not translate.
pub(crate) fn release(protocol: Protocol, original: &Tuple) -> io::Result<()> {
    delete(family(original), &nested(ORIGINAL, &[written(protocol, original)]))
}

fn delete(family: u8, named: &[u8]) -> io::Result<()> {
    match request(DELETE, 0, &body(family, named)) {
        // The entry expired meanwhile, or a later connection has its tuple.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

/// The state of a reserved connection, whose beginning netfilter did not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReservedState {
    /// No packet of the connection will pass netfilter.
    Unseen,
    /// An open TCP connection. netfilter does not know its sequence numbers, so it must not check them.
    Open,
}

/// Creates a conntrack entry without translation for this many seconds: netfilter then gives the source port to no
/// other connection to this destination.
///
/// With `is_new`, an existing entry is not changed, and the result is false.
pub(crate) fn reserve(
    protocol: Protocol,
    original: &Tuple,
    state: ReservedState,
    seconds: u32,
    is_new: bool,
) -> io::Result<bool> {
    const EXCLUSIVE: u16 = 0x200;
    let attributes = [
        nested(ORIGINAL, &[written(protocol, original)]),
        nested(REPLY, &[written(protocol, &original.reversed())]),
        number(TIMEOUT, seconds),
        if state == ReservedState::Open { open() } else { Vec::new() },
    ];
    // Without `NLM_F_EXCL` the kernel changes the entry that exists, and so renews its timeout
    // (`ctnetlink_new_conntrack` in net/netfilter/nf_conntrack_netlink.c).
    let flags = if is_new { CREATE | EXCLUSIVE } else { CREATE };
    match request(NEW, flags, &body(family(original), &attributes.concat())) {
        Ok(()) => Ok(true),
        Err(error) if is_new && error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Encodes `CTA_PROTOINFO_TCP`: established, and liberal about both windows (`struct nf_ct_tcp_flags`).
fn open() -> Vec<u8> {
    const ESTABLISHED: u8 = 3;
    const LIBERAL: [u8; 2] = [8; 2];
    let parts = [attribute(1, &[ESTABLISHED]), attribute(4, &LIBERAL), attribute(5, &LIBERAL)];
    nested(PROTOCOL, &[nested(1, &parts)])
}

/// Returns `NFPROTO_IPV4` or `NFPROTO_IPV6`.
const fn family(tuple: &Tuple) -> u8 {
    if tuple.source.is_v4() { 2 } else { 10 }
}

/// Encodes the content of a tuple (`enum ctattr_tuple`), for protocols with ports.
fn written(protocol: Protocol, tuple: &Tuple) -> Vec<u8> {
    let addresses = nested(1, &[addressed(1, 3, tuple.source), addressed(2, 4, tuple.destination)]);
    let port = |kind, port: Port| attribute(kind, &port.get().to_be_bytes());
    let ports = [port(2, tuple.source_port), port(3, tuple.destination_port)];
    let ends = nested(2, &[attribute(1, &[protocol.0]), ports.concat()]);
    [addresses, ends].concat()
}

/// Returns the attributes of the original tuple and of the id.
fn named(attributes: &[u8]) -> Vec<u8> {
    let original = find(attributes, ORIGINAL).map(|it| nested(ORIGINAL, &[it.to_vec()]));
    let id = find(attributes, ID).map(|id| attribute(ID, id));
    [original, id].into_iter().flatten().flatten().collect()
}

/// Parses a connection, except for the name.
fn connection(which: Which, family: u8, attributes: &[u8]) -> Option<Connection> {
    let status = u32::from_be_bytes(*find(attributes, STATUS)?.first_chunk()?);
    let (protocol, original) = tuple(find(attributes, ORIGINAL)?)?;
    let (_, reply) = tuple(find(attributes, REPLY)?)?;
    let is_over = state(attributes).is_some_and(|state| OVER.contains(&state));
    let is_translated = status & DESTINATION != 0;
    // Connections that are over keep their entry for a while; they hold a port, but no packet needs them.
    let is_meant = match which {
        Which::Translated => is_translated,
        Which::Kept => !is_translated && !is_over,
        Which::Either => is_translated || !is_over,
        Which::Over => is_over,
    };
    is_meant.then(|| Connection {
        protocol,
        original,
        reply,
        named: Vec::new(),
        family,
        left: find(attributes, TIMEOUT)
            .and_then(|left| left.first_chunk().copied())
            .map_or(u32::MAX, u32::from_be_bytes),
        is_translated,
        is_over,
        is_answered: status & ANSWERED != 0,
    })
}

/// Returns the TCP state of a connection.
fn state(attributes: &[u8]) -> Option<u8> {
    const TCP: u16 = 1;
    const STATE: u16 = 1;
    find(find(find(attributes, PROTOCOL)?, TCP)?, STATE)?.first().copied()
}

/// Parses a tuple (`enum ctattr_tuple`), for protocols with ports.
fn tuple(attributes: &[u8]) -> Option<(Protocol, Tuple)> {
    let (addresses, ends) = (find(attributes, 1)?, find(attributes, 2)?);
    let ip = |v4, v6| find(addresses, v4).or_else(|| find(addresses, v6)).and_then(address);
    let port = |kind| {
        let port = find(ends, kind)?.first_chunk().copied();
        port.map(|port| Port::new(u16::from_be_bytes(port)))
    };
    let protocol = Protocol(*find(ends, 1)?.first()?);
    let source = Endpoint::new(ip(1, 3)?, port(2)?);
    let destination = Endpoint::new(ip(2, 4)?, port(3)?);
    Some((protocol, Tuple::new(source, destination)))
}

#[cfg(test)]
mod tests;
