//! Link-layer addresses for frontends in networks of this node that no machine answers for.
//!
//! A packet of a host process waits in the stack for the link-layer address of its next hop, before the programs see it.
//! If the next hop is the frontend itself, possibly no machine has it: a VIP on the node that announces it, whose own
//! ARP and NDP do not reach its announcer, or a ClusterIP behind a route that names only the interface. Such an entry
//! gets the broadcast address of its interface and the state `STALE`. The programs translate the packets before they
//! leave; the kernel's probes go to every machine, so that the entry is right once one has the address. An answer to a
//! probe of NDP need not name the address (RFC 4861, 7.2.4), and TCP confirms an entry as well; so one that counts as
//! reachable is deleted after a while, and the kernel asks by multicast.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use ipnet::IpNet;
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::Handle;
use tokio::sync::watch::Receiver;
use tracing::debug;

use super::FrontendNetworks;
use super::error::Error;

/// Interval of looks at the neighbour table: that of the kernel's probes.
const LOOK: Duration = Duration::from_secs(1);
/// The number of probes of an `INCOMPLETE` entry a second after the first one: the kernel begins with 3
/// (`ucast_solicit`) and counts one more each second (`__neigh_event_send` in `net/core/neighbour.c`).
const UNANSWERED: u32 = 5;
/// The number of probes of an entry with an address after which the kernel gives it up, a second later. An answer to the
/// first one may not replace the address (`locktime`, `arp_process` in `net/ipv4/arp.c`).
const PROBED: u32 = 3;
/// The time after which an entry with a broadcast address that counts as reachable is deleted: 20 s, in hundredths of a
/// second (`USER_HZ`).
const CONFIRMED: u32 = 2_000;

/// Keeps the neighbour entries of frontends usable.
pub(super) async fn follow(frontends: &Receiver<Option<FrontendNetworks>>) -> Infallible {
    loop {
        tokio::time::sleep(LOOK).await;
        let wanted = frontends.borrow().as_ref().map(|wanted| wanted.networks.clone());
        let Some(networks) = wanted else { continue };
        let result = match super::connect() {
            Ok(handle) => look(&handle, &networks).await,
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            let error = crate::chain(&error);
            debug!(error, "neighbour entries of frontends were not looked at; retrying");
        }
    }
}

/// Gives each unanswered neighbour in these networks the broadcast address of its interface, and deletes the entries that
/// have had it for long.
async fn look(handle: &Handle, networks: &BTreeSet<IpNet>) -> Result<(), Error> {
    let neighbours = handle.neighbours().get().execute();
    let neighbours: Vec<NeighbourMessage> =
        neighbours.try_collect().await.map_err(|error| Error::Netlink("list neighbours", error))?;
    let is_frontend =
        |ip: &IpAddr| networks.contains(&IpNet::from(*ip)) || is_in_range(networks, ip);
    for neighbour in neighbours {
        let Some(ip) = destination(&neighbour).filter(is_frontend) else { continue };
        let interface = neighbour.header.ifindex;
        if is_confirmed(&neighbour) {
            let deleted = handle.neighbours().del(neighbour).execute().await;
            deleted.map_err(|error| Error::Netlink("delete a neighbour", error))?;
        } else if is_unanswered(&neighbour)
            && let Some(broadcast) = broadcast(handle, interface).await?
        {
            give(handle, &neighbour, &broadcast).await?;
            debug!(%ip, interface, "no machine answers for a frontend; its packets leave without it");
        }
    }
    Ok(())
}

/// Reports whether an address is in a network of several addresses.
fn is_in_range(networks: &BTreeSet<IpNet>, ip: &IpAddr) -> bool {
    let is_range = |network: &&IpNet| network.prefix_len() < network.max_prefix_len();
    networks.iter().filter(is_range).any(|network| network.contains(ip))
}

/// Reports whether no machine has answered for an address so far: the kernel has given up, has probed for a second, or
/// has probed a broadcast address again.
#[expect(clippy::wildcard_enum_match_arm, reason = "the other states hold an address")]
fn is_unanswered(neighbour: &NeighbourMessage) -> bool {
    let attributes = &neighbour.attributes;
    let is_probed = |least: u32| {
        attributes.iter().any(|it| matches!(it, NeighbourAttribute::Probes(n) if *n >= least))
    };
    match neighbour.header.state {
        NeighbourState::Failed => true,
        NeighbourState::Incomplete => is_probed(UNANSWERED),
        NeighbourState::Probe => is_probed(PROBED) && is_broadcast(neighbour),
        _ => false,
    }
}

/// Reports whether an entry with a broadcast address has counted as reachable for [`CONFIRMED`].
fn is_confirmed(neighbour: &NeighbourMessage) -> bool {
    neighbour.header.state == NeighbourState::Reachable
        && is_broadcast(neighbour)
        && neighbour.attributes.iter().any(
            |it| matches!(it, NeighbourAttribute::CacheInfo(times) if times.updated >= CONFIRMED),
        )
}

fn is_broadcast(neighbour: &NeighbourMessage) -> bool {
    neighbour.attributes.iter().any(|it| {
        matches!(it, NeighbourAttribute::LinkLayerAddress(address)
            if address.iter().all(|byte| *byte == u8::MAX))
    })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "other families have no frontends")]
fn destination(neighbour: &NeighbourMessage) -> Option<IpAddr> {
    neighbour.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })
}

/// Returns the broadcast address of an interface; `None` if it has none, as a tunnel.
async fn broadcast(handle: &Handle, interface: u32) -> Result<Option<Vec<u8>>, Error> {
    let mut links = handle.link().get().match_index(interface).execute();
    let link = links.try_next().await.map_err(|error| Error::Netlink("read a link", error))?;
    let attributes = link.into_iter().flat_map(|link| link.attributes);
    Ok(attributes.into_iter().find_map(|attribute| {
        if let LinkAttribute::Broadcast(address) = attribute { Some(address) } else { None }
    }))
}

/// Writes the address of a neighbour. Without `NLM_F_REPLACE` the kernel keeps an address that it has learned meanwhile
/// (`__neigh_update` in `net/core/neighbour.c`).
async fn give(handle: &Handle, neighbour: &NeighbourMessage, address: &[u8]) -> Result<(), Error> {
    let mut message = NeighbourMessage::default();
    message.header.family = neighbour.header.family;
    message.header.ifindex = neighbour.header.ifindex;
    message.header.state = NeighbourState::Stale;
    let is_destination =
        |it: &&NeighbourAttribute| matches!(it, NeighbourAttribute::Destination(_));
    message.attributes.extend(neighbour.attributes.iter().find(is_destination).cloned());
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(address.to_vec()));
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewNeighbour(message));
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK;
    let failed = |error| Error::Netlink("write a neighbour", error);
    let mut replies = handle.clone().request(request).map_err(failed)?;
    while let Some(reply) = replies.next().await {
        if let NetlinkPayload::Error(error) = reply.payload
            && error.code.is_some()
        {
            return Err(failed(rtnetlink::Error::NetlinkError(error)));
        }
    }
    Ok(())
}
