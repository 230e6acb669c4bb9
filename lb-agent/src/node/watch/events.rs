//! Applies the kernel's events to a view.

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
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

/// Reports whether a message describes a link: a bridge reports its ports with the same message types, and a wireless
/// card its scans, with nothing else but its name (`wireless_nlevent_process` in `net/wireless/wext-core.c`).
pub(in crate::node) fn is_whole(link: &LinkMessage) -> bool {
    let is_wireless = |it: &LinkAttribute| matches!(it, LinkAttribute::Wireless(_));
    link.header.interface_family == AddressFamily::Unspec
        && !link.attributes.iter().any(is_wireless)
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NetlinkHeader;
    use netlink_packet_route::link::WirelessEvent;

    use super::*;

    #[test]
    fn event_of_a_wireless_scan_changes_no_link() {
        let mut link = LinkMessage::default();
        link.header.index = 3;
        link.attributes = vec![LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1])];
        let mut view = NetnsView::default();
        put(&mut view, &RouteNetlinkMessage::NewLink(link.clone()));
        let before = view.clone();
        link.attributes = vec![
            LinkAttribute::IfName("wlan0".into()),
            LinkAttribute::Wireless(WirelessEvent::Other(vec![0; 16])),
        ];
        put(&mut view, &RouteNetlinkMessage::NewLink(link));
        assert_eq!(view, before);
    }

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
