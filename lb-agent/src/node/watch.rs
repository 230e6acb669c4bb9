//! Follows the links, addresses and default routes of our network namespace.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use futures::StreamExt as _;
use futures::channel::mpsc::UnboundedReceiver;
use futures::stream::TryStreamExt as _;
use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::SocketAddr;
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder};
use tokio::sync::watch::Sender;
use tracing::warn;

use super::View;
use super::view::default_route;

/// Everything is asked for again this often: netlink may drop events when we are slow.
const AGAIN: Duration = Duration::from_secs(30);
/// After a failure.
const PAUSE: Duration = Duration::from_secs(1);

const GROUPS: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];

/// What told of a device that got programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Told {
    /// The kernel, at once.
    Event,
    /// A list of everything, at the start and every half minute.
    List,
    /// Nobody: it failed before, and was tried again.
    Retry,
}

impl Told {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Event, Self::List, Self::Retry];

    /// As metrics name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::List => "list",
            Self::Retry => "retry",
        }
    }
}

/// The namespace as it is now, and what told of the change.
pub type Shown = Option<(View, Told)>;

type Messages = UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>;

/// Why the namespace could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No netlink socket.
    #[error("netlink socket")]
    Socket(#[from] std::io::Error),
    /// A question was not answered.
    #[error("netlink dump")]
    Dump(#[from] rtnetlink::Error),
    /// The kernel's side ended.
    #[error("netlink connection ended")]
    Ended,
}

/// The namespace as it is now, for who does not follow it. Not from within a runtime.
pub fn look() -> Result<View, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (connection, handle, _messages) = rtnetlink::new_connection()?;
        drop(tokio::spawn(connection));
        dump(&handle).await
    })
}

/// Shows the namespace to `views` until nobody looks any more.
pub async fn run(views: Sender<Shown>) {
    while !views.is_closed() {
        if let Err(error) = follow(&views).await {
            warn!(error = %crate::chain(&error), "links are not followed; trying again");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn follow(views: &Sender<Shown>) -> Result<(), Error> {
    let (connection, handle, mut messages) = rtnetlink::new_multicast_connection(&GROUPS)?;
    let connection = tokio::spawn(connection);
    let result = show(&handle, &mut messages, views).await;
    connection.abort();
    result
}

async fn show(
    handle: &Handle,
    messages: &mut Messages,
    views: &Sender<Shown>,
) -> Result<(), Error> {
    loop {
        let mut view = dump(handle).await?;
        publish(views, &view, Told::List);
        let again = tokio::time::sleep(AGAIN);
        tokio::pin!(again);
        loop {
            let message = tokio::select! {
                message = messages.next() => message.ok_or(Error::Ended)?,
                () = &mut again => break,
                () = views.closed() => return Ok(()),
            };
            let mut routes = apply(&mut view, message.0);
            while let Ok(message) = messages.try_recv() {
                routes |= apply(&mut view, message.0);
            }
            if routes {
                view.default_routes = dump_routes(handle).await?;
            }
            publish(views, &view, Told::Event);
        }
    }
}

fn publish(views: &Sender<Shown>, view: &View, told: Told) {
    let _: bool = views.send_if_modified(|shown| {
        let differs = shown.as_ref().is_none_or(|(shown, _)| shown != view);
        if differs {
            *shown = Some((view.clone(), told));
        }
        differs
    });
}

/// Takes an event over. Says whether default routes may be others.
#[expect(clippy::wildcard_enum_match_arm, reason = "fifty kinds of message, six matter")]
fn apply(view: &mut View, message: NetlinkMessage<RouteNetlinkMessage>) -> bool {
    let NetlinkPayload::InnerMessage(message) = message.payload else { return false };
    match message {
        // A bridge tells of its ports by the same messages, for its own family and with less in them.
        RouteNetlinkMessage::NewLink(link) if is_whole(&link) => view.put_link(&link),
        RouteNetlinkMessage::DelLink(link) if is_whole(&link) => view.remove_link(&link),
        RouteNetlinkMessage::NewAddress(address) => view.put_address(&address),
        RouteNetlinkMessage::DelAddress(address) => view.remove_address(&address),
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
            return route.header.destination_prefix_length == 0;
        }
        _ => {}
    }
    false
}

fn is_whole(link: &LinkMessage) -> bool {
    link.header.interface_family == AddressFamily::Unspec
}

async fn dump(handle: &Handle) -> Result<View, Error> {
    let mut view = View::default();
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await? {
        view.put_link(&link);
    }
    let mut addresses = handle.address().get().execute();
    while let Some(address) = addresses.try_next().await? {
        view.put_address(&address);
    }
    view.default_routes = dump_routes(handle).await?;
    Ok(view)
}

async fn dump_routes(handle: &Handle) -> Result<BTreeSet<u32>, Error> {
    let mut devices = BTreeSet::new();
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    for question in [v4, v6] {
        let mut routes = handle.route().get(question).execute();
        while let Some(route) = routes.try_next().await? {
            devices.extend(default_route(&route));
        }
    }
    Ok(devices)
}
