//! Applies the kernel's events to a view.

use netlink_packet_core::{
    NetlinkDeserializable as _, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tracing::debug;

use crate::node::routed::{Asks, RoutedInterfaces};
use crate::node::view::NetnsView;

/// Applies an event. Returns false if the kernel dropped events before it, so that everything must be listed again.
pub(super) fn apply(view: &mut NetnsView, message: NetlinkMessage<RouteNetlinkMessage>) -> bool {
    if let NetlinkPayload::Overrun(_) = message.payload {
        debug!("netlink dropped events; listing all interfaces");
        return false;
    }
    if let NetlinkPayload::InnerMessage(message) = message.payload {
        put(view, &message);
    }
    true
}

/// Applies the content of an event, or of one message of a list.
#[expect(clippy::wildcard_enum_match_arm, reason = "fifty kinds of message, four matter")]
pub(in crate::node) fn put(view: &mut NetnsView, message: &RouteNetlinkMessage) {
    match message {
        // A bridge reports its ports with the same message types, for its own address family and with fewer attributes.
        RouteNetlinkMessage::NewLink(link) if is_whole(link) => view.put_link(link),
        RouteNetlinkMessage::DelLink(link) if is_whole(link) => view.remove_link(link),
        RouteNetlinkMessage::NewAddress(address) => view.put_address(address),
        RouteNetlinkMessage::DelAddress(address) => view.remove_address(address),
        _ => {}
    }
}

/// Parses a message by its type; `None` if it cannot be parsed.
pub(in crate::node) fn read(kind: u16, body: &[u8]) -> Option<RouteNetlinkMessage> {
    let mut header = NetlinkHeader::default();
    header.message_type = kind;
    RouteNetlinkMessage::deserialize(&header, body).ok()
}

/// Applies an event about a route.
#[expect(clippy::wildcard_enum_match_arm, reason = "fifty kinds of message, two matter")]
pub(super) fn apply_route(
    routed: &mut RoutedInterfaces,
    message: NetlinkMessage<RouteNetlinkMessage>,
) -> Asks {
    match message.payload {
        NetlinkPayload::Overrun(_) => Asks::List,
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => routed.learn(&route),
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelRoute(route)) => {
            RoutedInterfaces::unlearn(&route)
        }
        _ => Asks::Nothing,
    }
}

/// Reports whether a message is about the link itself: a bridge reports its ports with the same message types.
pub(in crate::node) fn is_whole(link: &LinkMessage) -> bool {
    link.header.interface_family == AddressFamily::Unspec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_events_cause_a_new_list() {
        let overrun = || {
            let payload = NetlinkPayload::<RouteNetlinkMessage>::Overrun(Vec::new());
            NetlinkMessage::new(NetlinkHeader::default(), payload)
        };
        assert!(!apply(&mut NetnsView::default(), overrun()));
        assert_eq!(apply_route(&mut RoutedInterfaces::default(), overrun()), Asks::List);
    }
}
