//! Link-layer addresses for frontends in networks of this node that no machine answers for.
//!
//! A packet of a host process waits in the stack for the link-layer address of its next hop, before the programs see
//! it. If the next hop is the frontend itself, possibly no machine has it: a VIP on the node that announces it, whose
//! own ARP and NDP do not reach its announcer, or a ClusterIP behind a route that names only the interface. Such an
//! entry gets the broadcast address of its interface and the state `STALE`. The programs translate the packets before
//! they leave; the kernel's probes go to every machine, so that the entry is right once one has the address.
//!
//! An answer to a probe of NDP need not name the address (RFC 4861, 7.2.4), and TCP confirms an entry as well; so an
//! entry that was confirmed is deleted after a while, and the kernel asks by multicast.
//!
//! An external IP may be an address of another machine (k3s uses those of nodes). Where one has answered, the address
//! is left to the kernel for some minutes, also when the machine is down.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::Handle;
use tokio::sync::watch::Receiver;
use tracing::debug;

use self::table::{delete, give, list};
use super::FrontendNetworks;
use super::error::Error;

/// Interval of looks at the neighbour table: that of the kernel's probes.
const LOOK: Duration = Duration::from_secs(1);
/// The number of probes of an `INCOMPLETE` entry a second after the first one: the kernel begins with 3
/// (`ucast_solicit`) and counts one more each second (`__neigh_event_send` in `net/core/neighbour.c`).
const UNANSWERED: u32 = 5;
/// The number of probes after which an entry with the broadcast address is given it again: the kernel gives it up after
/// the third. An answer to the first one may not replace the address (`locktime`, `arp_process` in `net/ipv4/arp.c`).
const PROBED: u32 = 2;
/// The time after which an entry with the broadcast address that was confirmed is deleted.
const CONFIRMED: Duration = Duration::from_secs(20);

/// The time for which an address that a machine answered for is left to the kernel. By then its pods are evicted
/// (`node.kubernetes.io/unreachable`), or a VIP has moved to this node.
const ANSWERED: Duration = Duration::from_mins(5);

/// An entry of the neighbour table: index of the interface, address.
type Neighbour = (u32, IpAddr);

/// The action that an entry needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Keep,
    /// Gives it the broadcast address.
    Give,
    Delete,
}

/// The state of entries between two looks.
#[derive(Debug, Default)]
struct Seen {
    /// Interfaces of frontends at the last look at the whole table.
    interfaces: Option<BTreeSet<u32>>,
    /// Addresses that a machine has answered for, and when they had its address last.
    answered: BTreeMap<IpAddr, Instant>,
    /// Entries with the broadcast address that were confirmed, since when.
    confirmed: BTreeMap<Neighbour, Instant>,
}

/// The frontends whose neighbour entries are looked at.
#[derive(Debug, Default)]
struct Wanted {
    /// The interfaces of their networks.
    interfaces: BTreeSet<u32>,
    addresses: BTreeSet<IpAddr>,
    /// Networks of several addresses, as the range of ClusterIPs.
    ranges: Vec<IpNet>,
}

impl Seen {
    /// Returns the interfaces whose entries are listed next; `None` stands for all.
    ///
    /// The table may have an entry for every pod: it is read as a whole only when the interfaces of frontends change.
    fn scope(&self, wanted: &Wanted) -> Vec<Option<u32>> {
        let is_known = self.interfaces.as_ref() == Some(&wanted.interfaces);
        let each = wanted.interfaces.iter().copied().map(Some);
        if is_known { each.collect() } else { vec![None] }
    }
}

impl Wanted {
    fn new(frontends: &FrontendNetworks) -> Self {
        let mut wanted = Self { interfaces: frontends.interfaces.clone(), ..Self::default() };
        for network in &frontends.networks {
            if network.prefix_len() == network.max_prefix_len() {
                wanted.addresses.insert(network.addr());
            } else {
                wanted.ranges.push(*network);
            }
        }
        wanted
    }

    fn has(&self, interface: u32, ip: &IpAddr) -> bool {
        self.interfaces.contains(&interface)
            && (self.addresses.contains(ip) || self.ranges.iter().any(|range| range.contains(ip)))
    }
}

/// Keeps the neighbour entries of frontends usable.
pub(super) async fn follow(mut frontends: Receiver<Option<FrontendNetworks>>) -> Infallible {
    let mut seen = Seen::default();
    let mut wanted = None;
    frontends.mark_changed();
    loop {
        tokio::time::sleep(LOOK).await;
        // An error says that the sender is gone: the last frontends stay.
        if frontends.has_changed().unwrap_or(false) {
            wanted = frontends.borrow_and_update().as_ref().map(Wanted::new);
        }
        let Some(wanted) = &wanted else { continue };
        let result = match super::connect() {
            Ok(handle) => look(&handle, wanted, &mut seen).await,
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            let error = crate::chain(&error);
            debug!(error, "neighbour entries of frontends were not looked at; retrying");
        }
    }
}

/// Deletes all entries with a broadcast address. Returns whether there were any.
pub(super) async fn remove(handle: &Handle) -> Result<bool, Error> {
    let mut any = false;
    for neighbour in list(handle, None).await?.into_iter().filter(is_ours) {
        // An entry that cannot be deleted has ended meanwhile.
        any |= delete(handle, neighbour).await.is_ok();
    }
    Ok(any)
}

/// Looks once at all entries that may concern frontends.
async fn look(handle: &Handle, wanted: &Wanted, seen: &mut Seen) -> Result<(), Error> {
    let mut neighbours = Vec::new();
    for interface in seen.scope(wanted) {
        neighbours.extend(list(handle, interface).await?);
    }
    // The interfaces are recorded after the lists: if one of these fails, the whole table must be read again.
    seen.interfaces = Some(wanted.interfaces.clone());
    let there: BTreeSet<Neighbour> = neighbours.iter().filter_map(key).collect();
    seen.confirmed.retain(|key, _| there.contains(key));
    seen.answered.retain(|_, last| last.elapsed() < ANSWERED);
    for neighbour in neighbours {
        let result = match action(&neighbour, wanted, seen, Instant::now()) {
            Action::Keep => Ok(()),
            Action::Give => give(handle, &neighbour).await,
            Action::Delete => delete(handle, neighbour).await,
        };
        if let Err(error) = result {
            // The entry may be gone by now; the others are looked at all the same.
            debug!(
                error = crate::chain(&error),
                "neighbour entry of a frontend not written; retrying"
            );
        }
    }
    Ok(())
}

/// Decides about an entry.
fn action(neighbour: &NeighbourMessage, wanted: &Wanted, seen: &mut Seen, now: Instant) -> Action {
    let Some((interface, ip)) = key(neighbour) else { return Action::Keep };
    let is_frontend = wanted.has(interface, &ip);
    let answered = seen.answered.get(&ip);
    let is_answered = answered.is_some_and(|last| now.duration_since(*last) < ANSWERED);
    if is_ours(neighbour) {
        // Without an entry the kernel resolves the address again, and a machine may have it.
        if !is_frontend || is_answered {
            return Action::Delete;
        }
        if neighbour.header.state == NeighbourState::Reachable {
            seen.confirmed.entry((interface, ip)).or_insert(now);
        }
        let confirmed = seen.confirmed.get(&(interface, ip));
        if confirmed.is_some_and(|since| now.duration_since(*since) >= CONFIRMED) {
            return Action::Delete;
        }
        let is_probed = neighbour.header.state == NeighbourState::Probe;
        return if is_probed && probes(neighbour) >= PROBED { Action::Give } else { Action::Keep };
    }
    // The entry has another address now. If it gets the broadcast address again, its time begins anew.
    seen.confirmed.remove(&(interface, ip));
    if has_address(neighbour) {
        if is_frontend {
            seen.answered.insert(ip, now);
        }
        return Action::Keep;
    }
    let state = neighbour.header.state;
    let is_unanswered = state == NeighbourState::Failed
        || state == NeighbourState::Incomplete && probes(neighbour) >= UNANSWERED;
    if is_unanswered && is_frontend && !is_answered { Action::Give } else { Action::Keep }
}

/// Reports whether an entry in use has the broadcast address. Entries of other programs that have it are permanent.
fn is_ours(neighbour: &NeighbourMessage) -> bool {
    let is_broadcast = |it: &NeighbourAttribute| {
        matches!(it, NeighbourAttribute::LinkLayerAddress(address)
            if address.iter().all(|byte| *byte == u8::MAX))
    };
    has_address(neighbour)
        && neighbour.header.state != NeighbourState::Permanent
        && neighbour.attributes.iter().any(is_broadcast)
}

/// Reports whether packets to the address of an entry leave at once.
const fn has_address(neighbour: &NeighbourMessage) -> bool {
    matches!(
        neighbour.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
    )
}

fn probes(neighbour: &NeighbourMessage) -> u32 {
    let of = |it: &NeighbourAttribute| {
        if let NeighbourAttribute::Probes(probes) = it { Some(*probes) } else { None }
    };
    neighbour.attributes.iter().find_map(of).unwrap_or_default()
}

fn key(neighbour: &NeighbourMessage) -> Option<Neighbour> {
    Some((neighbour.header.ifindex, destination(neighbour)?))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "other families have no frontends")]
fn destination(neighbour: &NeighbourMessage) -> Option<IpAddr> {
    neighbour.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
