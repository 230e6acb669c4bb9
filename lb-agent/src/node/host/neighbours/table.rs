//! Reads and writes the kernel's neighbour table.

use futures::{StreamExt as _, TryStreamExt as _};
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use rtnetlink::Handle;

use crate::node::host::error::Error;

/// Lists the entries of an interface, or of all.
pub(super) async fn list(
    handle: &Handle,
    interface: Option<u32>,
) -> Result<Vec<NeighbourMessage>, Error> {
    let mut request = handle.neighbours().get();
    // The kernel filters by this attribute (`neigh_dump_table` in `net/core/neighbour.c`).
    request.message_mut().attributes.extend(interface.map(NeighbourAttribute::IfIndex));
    let neighbours = request.execute().try_collect().await;
    neighbours.map_err(|error| Error::Netlink("list neighbours", error))
}

pub(super) async fn delete(handle: &Handle, neighbour: NeighbourMessage) -> Result<(), Error> {
    let deleted = handle.neighbours().del(neighbour).execute().await;
    deleted.map_err(|error| Error::Netlink("delete a neighbour", error))
}

/// Gives an entry the broadcast address of its interface. Without `NLM_F_REPLACE` the kernel keeps an address that it
/// has learned meanwhile (`__neigh_update` in `net/core/neighbour.c`).
pub(super) async fn give(handle: &Handle, neighbour: &NeighbourMessage) -> Result<(), Error> {
    let Some(address) = broadcast(handle, neighbour.header.ifindex).await? else { return Ok(()) };
    let mut message = NeighbourMessage::default();
    message.header.family = neighbour.header.family;
    message.header.ifindex = neighbour.header.ifindex;
    message.header.state = NeighbourState::Stale;
    let is_destination =
        |it: &&NeighbourAttribute| matches!(it, NeighbourAttribute::Destination(_));
    message.attributes.extend(neighbour.attributes.iter().find(is_destination).cloned());
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(address));
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

/// Returns the broadcast address of an interface; `None` if it has none, as a tunnel.
async fn broadcast(handle: &Handle, interface: u32) -> Result<Option<Vec<u8>>, Error> {
    let mut links = handle.link().get().match_index(interface).execute();
    let link = links.try_next().await.map_err(|error| Error::Netlink("read a link", error))?;
    let attributes = link.into_iter().flat_map(|link| link.attributes);
    Ok(attributes.into_iter().find_map(|attribute| {
        if let LinkAttribute::Broadcast(address) = attribute { Some(address) } else { None }
    }))
}
