//! The choice of a service for a packet or a socket, and of the backend that gets it.

use crate::addr::Ip;
use crate::config::{Settings, address};
use crate::event::{DropReason, Event, PassReason, Return};
use crate::flow::{Affinity, Client, Flow};
use crate::forward::Refusal;
use crate::maglev;
use crate::service::{
    Backend, BackendId, Flags, Frontend, MEMBERS_PER_LINE, NARROW, Service, Set, Source,
};
use crate::tables::{Clock, Node, Services};

/// The client of a new flow, which decides policy, affinity and slot.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Asker {
    /// The source address of a packet, or the node's own address for a socket call: the key of the affinity.
    pub client: Ip,
    /// The source address as `loadBalancerSourceRanges` sees it.
    pub source: Ip,
    /// The hash that chooses the Maglev slot: of the tuple of a packet, or of the socket's cookie and destination.
    pub hash: u32,
    /// Not 0: the client is a pod of this node or the node itself; external policy Local does not bind it.
    pub local: u32,
}

/// The service that a packet or a socket addresses, and the backend that is chosen for it.
///
/// Written by `choose`, but for `asker` (`first`, `host`, `socket`) and for the backend that a packet names itself
/// (`direct`). Read by `begin` and by `explain`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice {
    /// The key of the lookup in `SERVICES`.
    pub frontend: Frontend,
    /// The service that was found.
    pub service: Service,
    /// The client that policy, affinity and the choice of the slot depend on.
    pub asker: Asker,
    /// The backend chosen for a new flow.
    pub backend: Backend,
    /// The row of that backend.
    pub backend_id: BackendId,
    /// The set that the backend was chosen from: 0 Cluster, 1 Local.
    pub scope: u32,
    /// [`crate::config::ServiceRanges::frontends_epoch`] as of before the lookup of the service.
    pub frontends_epoch: u32,
}

/// Nanoseconds in a second.
pub(super) const SECOND: u64 = 1_000_000_000;

/// Finds the service of `choice.frontend` (contract 3.2, step 2), which is a possible one by `classify::frontend`.
///
/// That is the service of the address itself; otherwise, for an address or port of a service range, that of a
/// `NodePort`, and then the entry of a known ClusterIP or a service range.
#[inline(never)]
pub(super) fn locate<T: Clock + Node + Services>(
    tables: &T,
    settings: &Settings,
    choice: &mut Choice,
    is_in_ranges: bool,
) -> Result<(), Refusal> {
    let ip = choice.frontend.ip;
    // The agent may remove the frontend right behind its lookup, and counts that afterwards: with the later count the
    // new flow would never look its frontend up again.
    choice.frontends_epoch = settings.services.frontends_epoch;
    // The unspecified address is the key of `NodePorts`, and no host has it.
    if ip.is_unspecified() {
        return Err(Refusal::Pass(PassReason::NotOurs));
    }
    let is_there = tables.service(&choice.frontend, &mut choice.service);
    let is_draining = is_there && choice.service.flags.has(Flags::DRAINING);
    if is_there && !is_draining {
        // A process of this node listens there, as NodeLocal DNSCache does.
        if choice.service.flags.has(Flags::HOST) {
            return Err(Refusal::Pass(PassReason::NotOurs));
        }
        // kube-proxy refuses a connection only after no Service has translated it, so a `NodePort` with endpoints wins
        // over an address without (contract 3.2, step 1).
        let may_give_way = is_in_ranges && !choice.service.hides_node_port();
        if !may_give_way || !is_node_port(tables, settings, choice) {
            return Ok(());
        }
        choice.frontend.ip = ip.any_of_family();
        if tables.service(&choice.frontend, &mut choice.service) && choice.service.has_endpoints() {
            return Ok(());
        }
        choice.frontend.ip = ip;
        // The lookup of the `NodePort` may have overwritten the service, so that of the address is read again.
        let is_there = tables.service(&choice.frontend, &mut choice.service);
        return if is_there { Ok(()) } else { Err(Refusal::Pass(PassReason::NotOurs)) };
    }
    // A removed frontend begins no flow, unless a `NodePort` or a range has an entry for its address.
    let rest = if is_draining { Ok(()) } else { Err(Refusal::Pass(PassReason::NotOurs)) };
    if !is_in_ranges {
        return rest;
    }
    // Other addresses of the node serve no `NodePorts`: packets to them are left to the stack (contract 3.5).
    if is_node_port(tables, settings, choice) {
        choice.frontend.ip = ip.any_of_family();
        if tables.service(&choice.frontend, &mut choice.service) {
            return Ok(());
        }
    }
    // A removed ClusterIP is treated as any other port or address of its range.
    if !in_ranges(settings, &ip) {
        return rest;
    }
    choice.frontend = Frontend::cluster_address(ip);
    // An unknown port of a ClusterIP is refused, an unused address of a known ServiceCIDR dropped (contract 13).
    if tables.service(&choice.frontend, &mut choice.service) {
        // These are replies to processes of this node that send to such an address from that same address.
        let is_hosts = choice.service.flags.has(Flags::HOST);
        let pass = Refusal::Pass(PassReason::NotOurs);
        Err(if is_hosts { pass } else { Refusal::Reject(Return::UnknownPort) })
    } else if settings.services.are_known() && tables.address(&ip) == 0 {
        Err(Refusal::Drop(DropReason::UnallocatedAddress))
    } else {
        // Without ServiceCIDRs the prefixes are computed from the ClusterIPs, and may contain addresses of other hosts.
        // A ServiceCIDR may contain addresses of this node: kube-proxy's rules drop nothing that comes in to these.
        Err(Refusal::Pass(PassReason::NotOurs))
    }
}

/// Whether the address of `choice.frontend` serves `NodePorts`, and its port may be one.
#[inline(always)]
fn is_node_port<T: Node>(tables: &T, settings: &Settings, choice: &Choice) -> bool {
    settings.services.may_be_node_port(choice.frontend.port)
        && tables.address(&choice.frontend.ip) & address::NODE_PORTS != 0
}

/// Finds the service of `choice.frontend`, whose address is a loopback one: that of a `NodePort`, where the settings
/// have the agent serve `NodePorts` there (`localhostNodePorts`).
#[inline(never)]
pub(super) fn locate_loopback<T: Clock + Node + Services>(
    tables: &T,
    settings: &Settings,
    choice: &mut Choice,
) -> Result<(), Refusal> {
    choice.frontend.ip = choice.frontend.ip.any_of_family();
    choice.frontends_epoch = settings.services.frontends_epoch;
    let is_served = settings.has(Settings::LOOPBACK_NODE_PORTS)
        && tables.service(&choice.frontend, &mut choice.service)
        && !choice.service.flags.has(Flags::DRAINING);
    if is_served { Ok(()) } else { Err(Refusal::Pass(PassReason::NotOurs)) }
}

/// Whether an address may be a ClusterIP.
///
/// VERIFIER: a function of its own: inlined, each comparison doubles the paths of the program around it.
#[inline(never)]
pub(super) fn in_ranges(settings: &Settings, ip: &Ip) -> bool {
    settings.services.contain(ip)
}

/// Chooses a backend of `choice.service` for a new flow (contract 2.4, 3.2, 4). Writes no table.
#[inline(never)]
pub(super) fn choose<T: Clock + Node + Services>(
    tables: &T,
    choice: &mut Choice,
    now: u64,
) -> Result<(), Refusal> {
    let service = &choice.service;
    let flags = service.flags;
    if flags.has(Flags::ADDRESS) {
        return Err(Refusal::Reject(Return::UnknownPort));
    }
    // `locate` returns a draining frontend of an address only if no `NodePort` and no service range has that address; a
    // `NodePort` may drain itself.
    if flags.has(Flags::DRAINING) {
        return Err(Refusal::Pass(PassReason::DrainingFrontend));
    }
    // Source ranges precede the set: a source outside is dropped with or without endpoints (contract 3.2).
    if flags.has(Flags::SOURCE_RANGES)
        && !tables.allows(&Source::new(service.id, choice.asker.source))
    {
        return Err(Refusal::Drop(DropReason::SourceNotAllowed));
    }
    let only_local = is_local_only(flags, &choice.asker);
    let set = if only_local { service.local } else { service.cluster };
    // Policy Local with endpoints on other nodes only drops the packet; without any endpoint it is refused
    // (contract 2.4).
    if set.members == 0 {
        return Err(if only_local && flags.has(Flags::ANYWHERE) {
            Refusal::Drop(DropReason::NoLocalBackend)
        } else {
            Refusal::Reject(Return::NoBackend)
        });
    }
    choice.scope = u32::from(only_local);
    // Affinity precedes the Maglev slot, and follows the choice of the set: a backend outside of it is not used
    // (contract 3.2, 4).
    if choice.service.affinity != 0 && remembered(tables, choice, now) {
        tables.count(Event::AffinityHit);
        return Ok(());
    }
    let bad = Refusal::Drop(DropReason::BadTable);
    choice.backend_id = member(tables, &set, choice.asker.hash).ok_or(bad)?;
    // The row may have been retired since the packet read the set. It keeps its address for a grace period, and gets
    // another epoch when it is cleared: a datagram flow that begins now chooses again then.
    let there = tables.backend(choice.backend_id, &mut choice.backend);
    if there && choice.backend.epoch != 0 { Ok(()) } else { Err(bad) }
}

/// Whether traffic policy Local binds this client: an external policy binds neither pods of this node nor the node.
#[inline(always)]
pub const fn is_local_only(flags: Flags, asker: &Asker) -> bool {
    // The internal policy binds every client, the external one none of this node (contract 2.4).
    flags.has(Flags::LOCAL_POLICY) && !(flags.has(Flags::EXTERNAL) && asker.local != 0)
}

/// The member at the Maglev slot of a hash.
#[inline(always)]
fn member<T: Clock + Node + Services>(tables: &T, set: &Set, hash: u32) -> Option<BackendId> {
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

/// Finds the backend that a client sticks to, if it is still in the set in use. The memory of the other set counts too:
/// all frontends of a service port share their affinity.
#[inline(always)]
fn remembered<T: Clock + Node + Services>(tables: &T, choice: &mut Choice, now: u64) -> bool {
    let wanted = if choice.scope == 0 { Backend::IN_CLUSTER_SET } else { Backend::IN_LOCAL_SET };
    for scope in [choice.scope, 1 - choice.scope] {
        let key = Client { ip: choice.asker.client, service: choice.service.id, scope };
        let Some(known) = tables.affinity(&key) else {
            continue;
        };
        // The end of an affinity needs no agent: the sweep only frees the memory of old entries.
        if now.saturating_sub(known.seen) >= u64::from(choice.service.affinity) * SECOND {
            continue;
        }
        // By now the row may belong to another service, or have left the chosen set (contract 4).
        if tables.backend(known.backend, &mut choice.backend)
            && choice.backend.epoch == known.epoch
            && choice.backend.service == choice.service.id
            && choice.backend.flags & wanted != 0
        {
            choice.backend_id = known.backend;
            return true;
        }
    }
    false
}

/// Looks up the affinity entries of a client whose flow both ends have confirmed.
///
/// The kernel first displaces entries without a recent lookup, so that a flood from ever new addresses displaces only
/// its own entries.
#[inline(always)]
pub(super) fn confirm<T: Services>(tables: &T, flow: &Flow, ip: Ip) {
    if flow.flags & Flow::STICKY == 0 {
        return;
    }
    // A flow does not record the set that its backend was chosen from, so both entries are looked up.
    for scope in [0, 1] {
        let _looked_at = tables.affinity(&Client { ip, service: flow.service, scope });
    }
}

/// Stores or refreshes the backend of a client, once its new flow is in the tables.
#[inline(always)]
pub(super) fn remember<T: Clock + Node + Services>(tables: &T, choice: &Choice, now: u64) {
    if choice.service.affinity == 0 {
        return;
    }
    let key = Client { ip: choice.asker.client, service: choice.service.id, scope: choice.scope };
    // Each new flow of the client renews the time (contract 4).
    let value = Affinity { backend: choice.backend_id, epoch: choice.backend.epoch, seen: now };
    if !tables.put_affinity(&key, &value) {
        tables.count(Event::AffinityFull);
    }
}
