//! Follows the links, addresses and routes of our network namespace.

pub(super) mod events;
mod routes;
mod unparsed;

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::channel::mpsc::UnboundedReceiver;
use futures::future::OptionFuture;
use futures::stream::TryStreamExt as _;
use netlink_packet_core::NetlinkMessage;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{AsyncSocket as _, SocketAddr};
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::{Handle, MulticastGroup};
use tokio::sync::watch::Sender;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, interval_at, sleep_until};
use tracing::{debug, warn};

use self::events::{apply, apply_route};
pub(super) use self::events::{is_whole, put};
use self::routes::RouteSchedule;
pub(super) use self::unparsed::read;
use super::routed::{Asks, RoutedInterfaces};
use super::view::NetnsView;
use super::{hidden, nexthops};

/// Interval at which links and addresses are listed again. The kernel reports dropped events, so this only limits other
/// errors.
const AGAIN: Duration = Duration::from_secs(30);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// Receive buffer for events, in bytes: enough for those of thousands of pods while the agent gets no CPU.
const BUFFER: usize = 8 << 20;
/// Most route events that are handled at once. Thousands may arrive, and link events must not wait for all of them.
const AT_ONCE: usize = 1_000;

const LINKS: [MulticastGroup; 3] =
    [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
const ROUTE_GROUPS: [MulticastGroup; 2] = [MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];

/// How a change was learnt, such as a new interface that got programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeSource {
    /// By an event of the kernel, at once.
    Event,
    /// By listing everything, at the start and every half minute.
    List,
    /// By a retry of something that failed before.
    Retry,
}

impl ChangeSource {
    pub const ALL: [Self; 3] = [Self::Event, Self::List, Self::Retry];

    /// Returns the name that metrics use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::List => "list",
            Self::Retry => "retry",
        }
    }
}

/// A state of the namespace.
#[derive(Clone, Debug)]
pub struct Published {
    pub view: Arc<NetnsView>,
    /// How its last change was learnt.
    pub source: ChangeSource,
    /// The time as of which the state is valid. Later changes are not in it.
    pub at: std::time::Instant,
}

/// The current state of the namespace, once it is known.
pub type PublishedView = Option<Published>;

type Messages = UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>;

/// An error of reading the namespace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A netlink socket could not be opened.
    #[error("netlink socket")]
    Socket(#[from] std::io::Error),
    /// The kernel did not answer a request for a list.
    #[error("netlink dump")]
    Dump(#[from] rtnetlink::Error),
    /// The netlink connection ended.
    #[error("netlink connection ended")]
    Ended,
}

/// Returns the current state of the namespace once. Must not be called inside a runtime.
pub fn look() -> Result<NetnsView, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (connection, handle, _messages) = rtnetlink::new_connection()?;
        drop(tokio::spawn(connection));
        let routed = RoutedInterfaces::list(&handle).await?;
        Ok(NetnsView { routed, ..dump(&handle).await? })
    })
}

/// The known state of the namespace. It outlives the sockets, which are reopened after dropped events.
#[derive(Debug, Default)]
struct KnownState {
    view: NetnsView,
    routes: RouteSchedule,
}

/// Publishes the state of the namespace to `views` until there is no receiver.
pub async fn run(views: Sender<PublishedView>) {
    let mut state = KnownState::default();
    while !views.is_closed() {
        // The last view stays published while the connection is made again.
        if let Err(error) = follow(&views, &mut state).await {
            warn!(error = %crate::chain(&error), "watching interfaces failed; retrying");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Follows the namespace. Returns `Ok` if the kernel dropped events: those still queued are older than the next list.
async fn follow(views: &Sender<PublishedView>, state: &mut KnownState) -> Result<(), Error> {
    // Routes have a connection of their own, so that many of them, changed or listed, delay no link event.
    let (mut links, _, mut link_events) = rtnetlink::new_multicast_connection(&LINKS)?;
    let (mut routes, _, mut route_events) = rtnetlink::new_multicast_connection(&ROUTE_GROUPS)?;
    // A notification carries the sequence number of the request that caused it, of any process. Lists have connections
    // of their own, where it cannot end one with the same number.
    let (lists, link_handle, _) = rtnetlink::new_connection()?;
    let (route_lists, route_handle, _) = rtnetlink::new_connection()?;
    for connection in [&mut links, &mut routes] {
        enlarge(connection.socket_mut().socket_ref().as_fd());
    }
    let connections = [links, routes, lists, route_lists].map(tokio::spawn);
    let result =
        show(&link_handle, &route_handle, &mut link_events, &mut route_events, views, state).await;
    connections.iter().for_each(JoinHandle::abort);
    result
}

/// Enlarges a receive buffer beyond `net.core.rmem_max`, if permitted.
pub(super) fn enlarge(socket: BorrowedFd<'_>) {
    if let Err(error) = setsockopt(&socket, sockopt::RcvBufForce, &BUFFER) {
        debug!(%error, "netlink receive buffer could not be raised");
    }
}

async fn show(
    link_handle: &Handle,
    route_handle: &Handle,
    link_events: &mut Messages,
    route_events: &mut Messages,
    views: &Sender<PublishedView>,
    KnownState { view, routes }: &mut KnownState,
) -> Result<(), Error> {
    let mut nexthop_changes = nexthops::NexthopChanges::follow()?;
    routes.restart();
    loop {
        // All is listed again from time to time, in case a change came without an event.
        let mut again = interval_at(Instant::now() + AGAIN, AGAIN);
        view.replace(dump(link_handle).await?);
        // The search is not awaited here, because it enters every named network namespace.
        let mut hidden = Some(spawn_blocking(hidden::find));
        let mut source = ChangeSource::List;
        loop {
            if routes.is_known() {
                publish(views, view, source);
            }
            // Routes are listed beside the events, because a node may have very many.
            routes.begin(route_handle, &view.routed);
            source = ChangeSource::Event;
            let (next, is_waiting) = (routes.next(), routes.is_waiting());
            tokio::select! {
                biased;
                message = link_events.next() => {
                    let mut is_whole = apply(view, message.ok_or(Error::Ended)?.0);
                    // All queued messages are applied before the view is published: each publication makes the agent
                    // compare all interfaces.
                    while let Ok(message) = link_events.try_recv() {
                        is_whole &= apply(view, message.0);
                    }
                    if !is_whole {
                        return Ok(());
                    }
                }
                message = route_events.next() => {
                    let mut asks = apply_route(&mut view.routed, message.ok_or(Error::Ended)?.0);
                    // The number is bounded, so that a routing daemon with a full table cannot keep links from being
                    // seen.
                    for _ in 1..AT_ONCE {
                        let Ok(message) = route_events.try_recv() else { break };
                        asks = asks.max(apply_route(&mut view.routed, message.0));
                    }
                    if asks == Asks::List {
                        routes.ask(ChangeSource::Event);
                    }
                }
                changed = nexthop_changes.next() => {
                    changed?;
                    routes.ask(ChangeSource::Event);
                }
                Some(listed) = routes.take(&mut view.routed) => {
                    source = listed?;
                }
                () = sleep_until(next), if is_waiting => {}
                Some(found) = OptionFuture::from(hidden.as_mut()) => {
                    (view.hidden, hidden) = (found.unwrap_or_default(), None);
                }
                _ = again.tick() => {
                    routes.ask(ChangeSource::List);
                    break;
                }
                () = views.closed() => return Ok(()),
            }
        }
    }
}

fn publish(views: &Sender<PublishedView>, view: &NetnsView, source: ChangeSource) {
    // The view is compared and copied outside the lock of the channel: the thread for new pods may wait for that lock.
    let last = views.borrow().as_ref().map(|published| Arc::clone(&published.view));
    // Many events change nothing that matters here. A list is published for its time.
    if source == ChangeSource::List || last.is_none_or(|last| *last != *view) {
        let at = std::time::Instant::now();
        let published = Published { view: Arc::new(view.clone()), source, at };
        drop(views.send_replace(Some(published)));
    }
}

/// Lists all links and addresses as a view.
async fn dump(handle: &Handle) -> Result<NetnsView, Error> {
    let mut view = NetnsView::default();
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await? {
        view.put_link(&link);
    }
    let mut addresses = handle.address().get().execute();
    while let Some(address) = addresses.try_next().await? {
        view.put_address(&address);
    }
    view.sort_listed();
    let known = view.links.keys().copied().collect();
    let unparsed = spawn_blocking(move || unparsed::look(&known));
    for message in unparsed.await.map_err(std::io::Error::other)?? {
        put(&mut view, &message);
    }
    Ok(view)
}
