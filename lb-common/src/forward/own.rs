//! Connections that this node began, or that are masqueraded as its own (ADR 0035).
//!
//! They are recorded where their replies look like requests to a `NodePort` or an external IP, or have a port that
//! translated sources may get. A flow takes no port of such a connection.

use crate::addr::Protocol;
use crate::config::{Device, NodeSettings, Settings};
use crate::flow::{Flow, FlowKey, Kind, Side, Tuple};
use crate::forward::choose::SECOND;
use crate::forward::{Found, Role};
use crate::hash;
use crate::packet::Packet;
use crate::tables::{Clock, Filters, Flows, Node};
use crate::wire::{Headers, View};

/// Age of a record from which on a packet renews it, in steps of [`Flow::moment`]: 17 s. A record counts for twice as
/// long at least.
const RENEWED: u32 = 128;

/// Whether a packet may begin a connection from the source of a masqueraded flow, by the packet alone:
/// [`has_our_source`] looks for the flow.
#[inline(always)]
pub(super) fn may_have_our_source(
    settings: &Settings,
    tuple: &Tuple,
    view: &View,
    role: Role,
) -> bool {
    role == Role::External
        && (view.is_syn() || view.protocol != Protocol::TCP)
        && settings.node.is_source_port(tuple.source_port)
}

/// Whether a new connection, or a datagram, has the same source towards a backend as a masqueraded flow.
///
/// Netfilter chose that source, by rules of a CNI plugin or while the data path drains; or a process of this host did,
/// while `ip_local_port_range` leaves no ports for translated sources. The replies would go to the client of that flow,
/// so the connection gets a masquerade of its own, which is found from then on.
///
/// A forwarded packet may have that source legitimately: at an interface below another one, from the program above; and
/// during an upgrade, from the program of another layout.
///
/// VERIFIER: a function of its own: the key of the replies fills a part of the stack.
#[inline(never)]
pub(super) fn has_our_source<P: Packet, T: Clock + Filters + Flows + Node>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    headers: &Headers,
    found: &mut Found,
) -> bool {
    let is_from_host = packet.is_from_host();
    let carries = || {
        let device = tables.device(packet.device());
        device.is_none_or(|device| device.flags & Device::CARRIES != 0)
    };
    // The tests stand in the order of their costs: a filter, fields of the packet, a map, the tables of flows.
    if !settings.node.may_be_own(&headers.key.tuple.source)
        || !is_from_host && (packet.is_masqueraded() || carries())
        || !found.find_answers(tables, headers, Side::INGRESS)
        || found.answers.flow.kind != Kind::UNMASQUERADE
    {
        return false;
    }
    let Found { flow, answers, .. } = found;
    answers.flow.write_entry(Kind::MASQUERADE, flow);
    // Service 0 shows that the masquerade belongs to no flow (`is_own_masquerade`).
    (flow.service, flow.backend, flow.epoch, flow.flags) = (0, 0, 0, 0);
    flow.seen = tables.now();
    flow.begun = Flow::moment(flow.seen);
    true
}

/// Whether an entry is a masquerade of [`has_our_source`]: it belongs to no flow through a service that would restore
/// its entries.
#[inline(always)]
pub(super) const fn is_own_masquerade(flow: &Flow) -> bool {
    matches!(flow.kind, Kind::MASQUERADE) && flow.service == 0
}

/// Whether the entry that was found is such a masquerade, and its replies no longer reach it.
#[inline(always)]
pub(super) fn is_stale<T: Clock + Filters + Flows>(tables: &T, found: &mut Found) -> bool {
    is_own_masquerade(&found.flow) && !found.find_opposite(tables)
}

/// Whether the replies to a packet that leaves may be taken for other packets.
///
/// The packet may belong to a connection that this node began, or that is masqueraded as its own. From a port or an
/// address that frontends have, its replies look like requests to a Service (ADR 0035); from a port that a translated
/// source may get, they would go to the client of that flow.
///
/// All numbers of the usual range count: the `NodePort` may be created while the connection is open.
#[inline(always)]
pub(super) fn may_be_own(settings: &Settings, tuple: &Tuple) -> bool {
    looks_like_frontend(settings, tuple) && settings.node.may_be_own(&tuple.source)
}

/// Whether a packet has a source that a frontend may have, or a port that the node shares with translated sources.
#[inline(always)]
fn looks_like_frontend(settings: &Settings, tuple: &Tuple) -> bool {
    settings.may_become_node_port(tuple.source_port)
        || NodeSettings::is_shared_port(tuple.source_port)
        || settings.services.may_be_vip(&tuple.source)
}

/// Whether [`record_own`] may have something to record about a packet that leaves an interface and follows no flow, by
/// the packet alone.
#[inline(always)]
pub(super) fn may_be_recorded(settings: &Settings, tuple: &Tuple, view: &View, role: Role) -> bool {
    (looks_like_frontend(settings, tuple) || may_have_our_source(settings, tuple, view, role))
        && settings.node.may_be_own(&tuple.source)
}

/// Whether [`record_own`] has something to record. From a port for translated sources, only connections to possible
/// backends matter.
#[inline(always)]
pub(super) fn is_recorded<T: Filters>(tables: &T, settings: &Settings, tuple: &Tuple) -> bool {
    looks_like_frontend(settings, tuple)
        || tables.may_be_backend(&tuple.destination, tuple.destination_port)
}

/// Records the replies to such a packet, unless they are requests of a flow through a service.
///
/// A packet that another program of this data path has translated (on a VLAN's upper interface) has the frontend as its
/// source. While netfilter translates connections to frontends, its replies look the same.
#[inline(never)]
pub(super) fn record_own<T: Clock + Filters + Flows>(
    tables: &T,
    settings: &Settings,
    headers: &Headers,
    found: &mut Found,
) {
    // A node that refuses or accepts a flood would record each of its packets: a RST or ABORT gets no reply, and a
    // server's connection or association is recorded with its next packet.
    let view = &headers.view;
    let is_recorded = !view.is_refusing() && !view.is_accepting() && !settings.has(Settings::DRAIN);
    if !is_recorded || found.find_answers(tables, headers, Side::INGRESS) {
        return;
    }
    let protocol = headers.key.protocol;
    let hash = hash::whole(&found.answers.key.tuple, protocol);
    // Segments that reply to such a packet pass during a take-over; the agent lists them when it ends.
    let may_be_netfilters = settings.has(Settings::TAKE_OVER)
        && (protocol == Protocol::TCP || tables.is_inherited(hash));
    if may_be_netfilters {
        return;
    }
    let now = Flow::moment(tables.now());
    // The record is seldom written, since an update locks a list of all CPUs.
    let is_recent =
        tables.own_answer(hash).is_some_and(|moment| now.wrapping_sub(moment) < RENEWED);
    if !is_recent {
        tables.put_own_answer(hash, now);
    }
}

/// Whether the tuple of a reply in the making belongs to a connection that this node began or masquerades: then its
/// flow needs another port. Without `counts_records`, only sockets count.
#[inline(always)]
pub(super) fn conflicts<P: Packet, T: Clock + Filters>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    reply: &FlowKey,
    counts_records: bool,
) -> bool {
    settings.node.may_be_own(&reply.tuple.destination)
        && is_own(packet, tables, settings, reply, counts_records)
}

/// Whether packets of this tuple belong to a connection of this node: one that egress or the agent has recorded, or one
/// of a socket, which may have been silent for long.
///
/// VERIFIER: a function of its own: inlined, the hash would fill registers of the parts that call it.
#[inline(never)]
fn is_own<P: Packet, T: Clock + Filters>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    key: &FlowKey,
    counts_records: bool,
) -> bool {
    counts_records && age(tables, settings, key).is_some()
        || packet.has_socket(&key.tuple, key.protocol)
}

/// The age of the record for the packets of a connection, in steps of [`Flow::moment`]: `None` without a record, or
/// after more silence than the longest in which a flow of its protocol lives.
///
/// Otherwise a record would last as long as packets find it: a client of a process of the node would never reach a
/// Service that gets the port of that process.
#[inline(always)]
fn age<T: Clock + Filters>(tables: &T, settings: &Settings, key: &FlowKey) -> Option<i32> {
    let moment = tables.own_answer(hash::whole(&key.tuple, key.protocol))?;
    let longest = u64::from(settings.node.lifetimes.longest(key.protocol)) * SECOND;
    // Packets renew a record every 17 s only, so a shorter lifetime would forget connections in use.
    let longest = Flow::moment(longest).max(2 * RENEWED);
    // The agent's clock may be a step ahead of the programs'.
    let age = Flow::moment(tables.now()).wrapping_sub(moment).cast_signed();
    (age <= longest.cast_signed()).then_some(age)
}

/// Whether a packet to a frontend without a flow belongs to a connection that is not translated: it is a reply in a
/// connection that this node began, or goes to an address that became one of a Service while the connection was open.
/// A SYN or INIT never does.
#[inline(always)]
pub(super) fn is_untranslated<P: Packet, T: Clock + Filters>(
    packet: &P,
    tables: &T,
    settings: &Settings,
    headers: &Headers,
) -> bool {
    if headers.view.is_opening() {
        return false;
    }
    let to = &headers.key.tuple.destination;
    let may_be_own = settings.node.may_be_own(to);
    // The filter has no link-local addresses, and egress records none.
    if may_be_own || to.is_link_local() {
        return is_own(packet, tables, settings, &headers.key, may_be_own);
    }
    // Datagrams towards another address begin flows at once, as with kube-proxy, which deletes their conntrack entries
    // (contract 5).
    headers.key.protocol == Protocol::TCP && follows_record(tables, settings, &headers.key)
}

/// Whether the agent has recorded the connection of a packet to an address outside. The packet renews the record, as
/// egress sees no packet of such a connection that would.
///
/// VERIFIER: a function of its own: inlined, the hash would fill registers of the parts that call it.
#[inline(never)]
fn follows_record<T: Clock + Filters>(tables: &T, settings: &Settings, key: &FlowKey) -> bool {
    let Some(age) = age(tables, settings, key) else { return false };
    if age >= RENEWED.cast_signed() {
        let hash = hash::whole(&key.tuple, key.protocol);
        tables.put_own_answer(hash, Flow::moment(tables.now()));
    }
    true
}
