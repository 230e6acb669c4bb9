//! Which service a packet asks for, and which backend answers.

use super::Refusal;
use crate::addr::{Ip, Port};
use crate::config::{Settings, address};
use crate::event::{DropReason, Event, PassReason, Turn};
use crate::flow::{Affinity, Client, Tuple};
use crate::maglev;
use crate::scratch::{Asker, Scratch};
use crate::service::{Backend, BackendId, Flags, Frontend, MEMBERS_PER_LINE, NARROW, Set, Source};
use crate::tables::Tables;

/// Nanoseconds in a second.
pub(super) const SECOND: u64 = 1_000_000_000;

/// Whether a destination may be a ClusterIP or a `NodePort`. Other frontends are told by their address
/// ([`Settings::may_be_other`]) and one look-up.
#[inline(always)]
pub(super) const fn is_near(settings: &Settings, ip: &Ip, port: Port, v4: bool) -> bool {
    let [cover4, cover6] = &settings.cover;
    let cover = if v4 { cover4 } else { cover6 };
    cover.covers(ip) || is_node_port(settings, port)
}

/// Whether the destination of a packet may be a frontend: what is not is looked up nowhere.
#[inline(always)]
pub(super) fn may_be_asked(settings: &Settings, tuple: &Tuple, v4: bool) -> bool {
    is_near(settings, &tuple.destination, tuple.destination_port, v4)
        || settings.may_be_other(&tuple.destination)
}

#[inline(always)]
const fn is_node_port(settings: &Settings, port: Port) -> bool {
    let number = port.get();
    number >= settings.node_port_low.get() && number <= settings.node_port_high.get()
}

/// Finds the service of `scratch.frontend`: the address itself, else, where it [`is_near`], a `NodePort`, else the
/// mark of a known ClusterIP or of a service range (contract 3.2, step 2).
#[inline(never)]
pub(super) fn locate<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
    is_near: bool,
) -> Result<(), Refusal> {
    if !is_near && !settings.may_be_other(&scratch.frontend.ip) {
        return Err(Refusal::Pass(PassReason::NotOurs));
    }
    let ip = scratch.frontend.ip;
    // The key of `NodePorts` is nobody's address.
    if ip.is_unspecified() {
        return Err(Refusal::Pass(PassReason::NotOurs));
    }
    let is_there = tables.service(&scratch.frontend, &mut scratch.service);
    let is_leaving = is_there && scratch.service.flags.has(Flags::LEAVING);
    if is_there && !is_leaving {
        let is_hosts = scratch.service.flags.has(Flags::HOST);
        return if is_hosts { Err(Refusal::Pass(PassReason::NotOurs)) } else { Ok(()) };
    }
    // A removed frontend begins no flow, unless its address has another one.
    let rest = if is_leaving { Ok(()) } else { Err(Refusal::Pass(PassReason::NotOurs)) };
    if !is_near {
        return rest;
    }
    if is_node_port(settings, scratch.frontend.port)
        && tables.address(&ip) & address::NODE_PORTS != 0
    {
        scratch.frontend.ip = ip.any_of_family();
        if tables.service(&scratch.frontend, &mut scratch.service) {
            return Ok(());
        }
    }
    // A ClusterIP that is gone is what any other port or address of its range is.
    if !in_ranges(settings, &ip) {
        return rest;
    }
    scratch.frontend = Frontend::cluster_address(ip);
    if tables.service(&scratch.frontend, &mut scratch.service) {
        // Answers to processes of this node that ask such an address from itself.
        let is_hosts = scratch.service.flags.has(Flags::HOST);
        let pass = Refusal::Pass(PassReason::NotOurs);
        Err(if is_hosts { pass } else { Refusal::Reject(Turn::UnknownPort) })
    } else if settings.has(Settings::RANGES_KNOWN) {
        Err(Refusal::Drop(DropReason::UnallocatedAddress))
    } else {
        Err(Refusal::Pass(PassReason::NotOurs))
    }
}

/// Finds the service of `scratch.frontend`, whose address is a loopback one: a `NodePort`, where the agent is told to serve
/// them there (`localhostNodePorts`).
#[inline(never)]
pub(super) fn locate_loopback<T: Tables>(
    tables: &T,
    settings: &Settings,
    scratch: &mut Scratch,
) -> Result<(), Refusal> {
    scratch.frontend.ip = scratch.frontend.ip.any_of_family();
    let is_served = settings.has(Settings::LOOPBACK_NODE_PORTS)
        && tables.service(&scratch.frontend, &mut scratch.service)
        && !scratch.service.flags.has(Flags::LEAVING);
    if is_served { Ok(()) } else { Err(Refusal::Pass(PassReason::NotOurs)) }
}

/// Whether an address may be a ClusterIP.
///
/// VERIFIER: a function of its own, or each comparison doubles the paths of the program around it.
#[inline(never)]
pub(super) fn in_ranges(settings: &Settings, ip: &Ip) -> bool {
    settings.ranges.iter().any(|range| range.contains(ip))
}

/// Chooses a backend of `scratch.service` for a new flow (contract 2.4, 3.2, 4). Writes no table.
#[inline(never)]
pub(super) fn choose<T: Tables>(
    tables: &T,
    scratch: &mut Scratch,
    now: u64,
) -> Result<(), Refusal> {
    let service = &scratch.service;
    let flags = service.flags;
    if flags.has(Flags::ADDRESS) {
        return Err(Refusal::Reject(Turn::UnknownPort));
    }
    if flags.has(Flags::LEAVING) {
        return Err(Refusal::Pass(PassReason::Leaving));
    }
    if flags.has(Flags::SOURCES) && !tables.allows(&Source::new(service.id, scratch.asker.source)) {
        return Err(Refusal::Drop(DropReason::SourceNotAllowed));
    }
    let only_local = is_local_only(flags, &scratch.asker);
    let set = if only_local { service.local } else { service.cluster };
    if set.members == 0 {
        return Err(if only_local && flags.has(Flags::ANYWHERE) {
            Refusal::Drop(DropReason::NoLocalBackend)
        } else {
            Refusal::Reject(Turn::NoBackend)
        });
    }
    scratch.scope = u32::from(only_local);
    if scratch.service.affinity != 0 && remembered(tables, scratch, scratch.asker.client, now) {
        tables.count(Event::AffinityHit);
        return Ok(());
    }
    let bad = Refusal::Drop(DropReason::BadTable);
    scratch.backend_id = member(tables, &set, scratch.asker.hash).ok_or(bad)?;
    let there = tables.backend(scratch.backend_id, &mut scratch.backend);
    if there && scratch.backend.epoch != 0 { Ok(()) } else { Err(bad) }
}

/// Whether traffic policy Local binds this client: an external one does not bind pods of this node, nor the node.
#[inline(always)]
pub const fn is_local_only(flags: Flags, asker: &Asker) -> bool {
    flags.has(Flags::LOCAL_POLICY) && !(flags.has(Flags::EXTERNAL) && asker.local != 0)
}

/// The member at the Maglev slot of a hash.
#[inline(always)]
fn member<T: Tables>(tables: &T, set: &Set, hash: u32) -> Option<BackendId> {
    let index = if set.slots == 0 {
        0
    } else {
        let slot = maglev::slot(hash, set.slots);
        let first = set.line + set.member_lines();
        if set.members <= NARROW {
            u32::from(tables.slot_byte(first + slot / 64, slot % 64)?)
        } else {
            u32::from(tables.slot_u16(first + slot / 32, slot % 32)?)
        }
    };
    tables.slot_word(set.line + index / MEMBERS_PER_LINE, index % MEMBERS_PER_LINE)
}

/// Finds the backend a client sticks to, if it is still in the set in use. The memory of the other set
/// counts too: all frontends of a service port share their affinity.
#[inline(always)]
fn remembered<T: Tables>(tables: &T, scratch: &mut Scratch, client: Ip, now: u64) -> bool {
    let wanted = if scratch.scope == 0 { Backend::IN_CLUSTER_SET } else { Backend::IN_LOCAL_SET };
    for scope in [scratch.scope, 1 - scratch.scope] {
        let key = Client { ip: client, service: scratch.service.id, scope };
        let Some(known) = tables.affinity(&key) else {
            continue;
        };
        if now.saturating_sub(known.seen) >= u64::from(scratch.service.affinity) * SECOND {
            continue;
        }
        if tables.backend(known.backend, &mut scratch.backend)
            && scratch.backend.epoch == known.epoch
            && scratch.backend.service == scratch.service.id
            && scratch.backend.flags & wanted != 0
        {
            scratch.backend_id = known.backend;
            return true;
        }
    }
    false
}

/// Remembers or refreshes a client's backend, once its new flow stands.
#[inline(always)]
pub(super) fn remember<T: Tables>(tables: &T, scratch: &Scratch, client: Ip, now: u64) {
    if scratch.service.affinity == 0 {
        return;
    }
    let key = Client { ip: client, service: scratch.service.id, scope: scratch.scope };
    let value = Affinity { backend: scratch.backend_id, epoch: scratch.backend.epoch, seen: now };
    if !tables.put_affinity(&key, &value) {
        tables.count(Event::AffinityFull);
    }
}
