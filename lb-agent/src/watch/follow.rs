//! Follows one kind of objects through all failures of the server.

mod recovery;

use std::time::Duration;

use kube::Client;
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;

use self::recovery::Avoided;
use super::ListMode;
use super::failure::Failure;
use super::objects::Objects;
use super::pace::{Delay, Pace, chance};
use super::request::{Origin, Page, Selection};
use super::unread::Unread;
use super::version::{Newest, Version};
use crate::snapshot::{Event, ObjectKind, ViewHealth};

/// The number of watches in a row that may end at once before this counts as an outage.
const SHORT: u32 = 2;

/// One kind of objects to follow.
pub(super) struct Follow<O> {
    pub(super) client: Client,
    pub(super) objects: O,
    pub(super) selection: Selection,
    pub(super) list: ListMode,
    pub(super) view: ViewHealth,
    pub(super) events: Sender<Event>,
    pub(super) pace: Pace,
    pub(super) unread: Unread,
    pub(super) newest: Newest,
    /// The position to watch from. `None` before the first list, and after the server has forgotten it.
    pub(super) resume_from: Option<Version>,
    /// The server's state may have gone back behind this position. A server silently drops events older than the
    /// position that was requested.
    pub(super) is_in_doubt: bool,
    /// The next request for a list in pages.
    pub(super) page: Page,
    /// The place from which the server took the first list in pages.
    pub(super) origin: Origin,
    /// All names of the current list could be read.
    pub(super) is_whole: bool,
    /// A list of this kind has been complete before.
    known: bool,
    /// The delay before a request that follows a failure.
    delay: Delay,
    /// The delay between a failure and the whole list that it causes. Only a watch that lasts resets it.
    relist_delay: Delay,
    /// The number of watches in a row that ended at once or that the server refused.
    fruitless: u32,
    /// The number of streamed lists in a row that the server failed.
    failed_streams: u32,
    avoided: Avoided,
}

/// The end of a request that did not fail.
#[derive(Debug)]
pub(super) enum RequestEnd {
    /// It brought something, or lasted: the next one may follow at once.
    Well,
    /// A watch that ended at once and brought nothing.
    Short,
}

/// The server, the receiver of events and the request options that the followers of all kinds share.
#[derive(Clone)]
pub(super) struct FollowContext {
    pub(super) client: Client,
    pub(super) view: ViewHealth,
    pub(super) events: Sender<Event>,
    pub(super) list: ListMode,
    pub(super) pace: Pace,
}

impl<O: Objects> Follow<O> {
    /// Follows the objects that the selectors for labels and fields select.
    pub(super) fn new(
        objects: O,
        labels: Option<String>,
        fields: Option<String>,
        context: FollowContext,
    ) -> Self {
        let FollowContext { client, view, events, list, pace } = context;
        Self {
            client,
            objects,
            selection: Selection { path: O::PATH, labels, fields },
            list,
            unread: Unread::new(O::KIND, view.clone()),
            view,
            events,
            pace,
            newest: Newest::default(),
            resume_from: None,
            is_in_doubt: false,
            page: Page::First,
            origin: Origin::Cache,
            is_whole: true,
            known: false,
            delay: Delay::new(pace.first, pace.most),
            relist_delay: Delay::new(pace.first, pace.relist),
            fruitless: 0,
            failed_streams: 0,
            avoided: Avoided::default(),
        }
    }

    /// Follows the objects until the receiver of the events is dropped.
    pub(super) async fn run(mut self) {
        let listener = self.events.clone();
        // The end of the receiver must also end a request that is waiting for the server.
        tokio::select! {
            () = self.turns() => {}
            () = listener.closed() => {}
        }
    }

    async fn turns(&mut self) {
        loop {
            let result = match self.resume_from.clone() {
                Some(version) => self.watch(&version).await,
                // A list that was begun in pages continues in pages.
                None if !self.page.is_later() && self.streams() => self.stream().await,
                None => self.pages().await,
            };
            let pause = match result {
                Ok(RequestEnd::Well) => {
                    self.went_well();
                    Duration::ZERO
                }
                Ok(RequestEnd::Short) => {
                    let before_list = self.watched_in_vain(&Failure::Short);
                    // A single short watch is normal: a server that restarts ends all watches.
                    if self.fruitless >= SHORT {
                        self.view.stale(O::KIND, &Failure::Short.words(O::KIND));
                    }
                    self.delay.next().max(before_list)
                }
                Err(Failure::Closed) => return,
                Err(failure) => {
                    // The handler may change the position, so this is decided before.
                    let is_listing = self.resume_from.is_none();
                    self.failed(&failure, is_listing).await
                }
            };
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
    }

    /// Notes that something new arrived: the delays start again with the first.
    pub(super) const fn went_well(&mut self) {
        self.delay.reset();
        self.fruitless = 0;
    }

    /// A watch lasted, so the whole list before it was not part of a loop.
    pub(super) const fn watch_lasted(&mut self) {
        self.relist_delay.reset();
    }

    /// A list of this version is complete.
    pub(super) async fn listed(&mut self, version: &Version) -> Result<(), Failure> {
        self.page = Page::First;
        match self.newest.list(version) {
            Ok(false) => {}
            Ok(true) => tracing::warn!(
                resource = O::KIND.resource(),
                version = version.text(),
                "state of the API server is older than before (etcd restored?); everything was \
                 listed again"
            ),
            Err(()) => return Err(Failure::WentBack),
        }
        self.failed_streams = 0;
        // The order matters: status and metrics show the kind as complete no later than the events that the rest of the
        // agent acts on.
        self.unread.ended();
        self.view.synced(O::KIND);
        self.view.fresh(O::KIND);
        // ServiceCIDRs are sent together here, so they are known before their kind counts as synced.
        let (ended, is_whole) = (self.objects.ended(self.is_whole), self.is_whole);
        self.send(ended).await?;
        let synced = if is_whole { Event::Synced } else { Event::SyncedInPart };
        self.send(Some(synced(O::KIND))).await?;
        (self.resume_from, self.known, self.is_in_doubt) = (Some(version.clone()), true, false);
        Ok(())
    }

    pub(super) async fn list_begins(&mut self) -> Result<(), Failure> {
        self.is_whole = true;
        self.objects.began();
        self.unread.began();
        self.send(Some(Event::ListBegan(O::KIND))).await
    }

    /// Sends an event, if there is one.
    pub(super) async fn send(&self, event: Option<Event>) -> Result<(), Failure> {
        match event {
            Some(event) => self.events.send(event).await.map_err(|_closed| Failure::Closed),
            None => Ok(()),
        }
    }

    /// Returns how many seconds a watch shall last. The value varies, so that watches of many nodes do not end
    /// together.
    pub(super) fn seconds() -> String {
        format!("{:.0}", 240.0 + 60.0 * chance())
    }

    /// Returns the same for a watch that begins with the list, which must arrive within this time.
    pub(super) fn stream_seconds() -> String {
        format!("{:.0}", 1_800.0 + 300.0 * chance())
    }

    /// Returns the selection without the parts that the server did not understand.
    pub(super) fn selected(&self) -> Selection {
        let fields = self.selection.fields.clone().filter(|_| !self.avoided.has_fields());
        // Only Services can be filtered in the agent as well.
        let fields =
            if O::KIND == ObjectKind::Service { fields } else { self.selection.fields.clone() };
        Selection { fields, ..self.selection.clone() }
    }

    fn streams(&self) -> bool {
        self.list == ListMode::Streaming && !self.avoided.has_streams()
    }
}
