//! Follows one kind of objects, whatever happens to the server.

use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use kube::Api;
use kube::runtime::watcher::{self, watcher};
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

use super::ListMode;
use super::failure::{Consequence, consequence, is_about_us, words};
use super::objects::Objects;
use super::pace::{Delay, Pace};
use crate::snapshot::{Event, Kind, ViewHealth};

/// One kind of objects to follow.
#[derive(Debug)]
pub(super) struct Follow {
    pub(super) labels: Option<String>,
    pub(super) fields: Option<String>,
    pub(super) list: ListMode,
    pub(super) view: ViewHealth,
    pub(super) events: Sender<Event>,
    pub(super) pace: Pace,
}

/// Why one watcher came to its end.
enum End {
    /// Nobody listens any more.
    Closed,
    /// Begin from the start at once.
    Anew,
    /// Begin from the start after a while.
    Later(Duration),
}

/// Where one watcher is.
struct Place {
    listing: bool,
    streaming: bool,
    /// A list of this kind was complete once.
    known: bool,
    delay: Delay,
}

impl Follow {
    /// Follows until nobody receives the events any more.
    pub(super) async fn run<O: Objects>(mut self, api: Api<O::Object>, mut objects: O) {
        let listener = self.events.clone();
        let delay = Delay::new(self.pace);
        let mut place = Place { listing: true, streaming: false, known: false, delay };
        loop {
            (place.listing, place.streaming) = (true, false);
            let stream = watcher(api.clone(), self.config());
            let end = tokio::select! {
                end = self.one(stream, &mut objects, &mut place) => end,
                () = listener.closed() => return,
            };
            match end {
                End::Closed => return,
                End::Anew => {}
                End::Later(delay) => sleep(delay).await,
            }
        }
    }

    fn config(&self) -> watcher::Config {
        let config = watcher::Config {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            page_size: None,
            ..watcher::Config::default()
        };
        match self.list {
            ListMode::Streaming => config.streaming_lists(),
            ListMode::AtOnce => config.any_semantic(),
        }
    }

    /// Follows one watcher to its end.
    async fn one<O: Objects>(
        &mut self,
        stream: impl Stream<Item = watcher::Result<watcher::Event<O::Object>>>,
        objects: &mut O,
        place: &mut Place,
    ) -> End {
        let mut stream = pin!(stream);
        loop {
            let limit = match (place.listing, place.streaming) {
                (true, true) => self.pace.stream_stall,
                (true, false) => self.pace.stall,
                (false, _) => Duration::MAX,
            };
            let end = match timeout(limit, stream.next()).await {
                Ok(Some(Ok(event))) => {
                    place.note(&event, self.list);
                    self.tell(event, objects).await
                }
                Ok(Some(Err(error))) => self.failed(&error, O::KIND, place).await,
                Ok(None) => Some(End::Later(place.delay.next())),
                Err(_) => Some(self.stalled(O::KIND, place)),
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Reports what a watcher said; that is the end when nobody listens.
    async fn tell<O: Objects>(
        &self,
        event: watcher::Event<O::Object>,
        objects: &mut O,
    ) -> Option<End> {
        let (first, second) = match event {
            watcher::Event::Init => {
                objects.began();
                (Some(Event::ListBegan(O::KIND)), None)
            }
            watcher::Event::InitApply(object) => (objects.applied(&object), None),
            watcher::Event::Apply(object) => {
                self.view.fresh(O::KIND);
                (objects.applied(&object), None)
            }
            watcher::Event::Delete(object) => {
                self.view.fresh(O::KIND);
                (objects.deleted(&object), None)
            }
            watcher::Event::InitDone => {
                self.view.synced(O::KIND);
                self.view.fresh(O::KIND);
                (objects.ended(), Some(Event::Synced(O::KIND)))
            }
        };
        for event in [first, second].into_iter().flatten() {
            if self.events.send(event).await.is_err() {
                return Some(End::Closed);
            }
        }
        None
    }

    async fn failed(
        &mut self,
        error: &watcher::Error,
        kind: Kind,
        place: &mut Place,
    ) -> Option<End> {
        match consequence(error) {
            Consequence::AskLess if self.ask_less(kind) => return Some(End::Anew),
            Consequence::Refused if place.listing => {
                return Some(self.refused(error, kind, place).await);
            }
            Consequence::Relist if !place.listing => {
                self.view.stale(kind, &words(error, kind));
                return Some(End::Later(place.delay.next()));
            }
            Consequence::AskLess
            | Consequence::Refused
            | Consequence::Relist
            | Consequence::Again => {}
        }
        self.view.stale(kind, &words(error, kind));
        sleep(place.delay.next()).await;
        None
    }

    /// Drops what an older server may not understand. False when nothing is left to drop.
    fn ask_less(&mut self, kind: Kind) -> bool {
        let resource = kind.resource();
        if self.list == ListMode::Streaming {
            self.list = ListMode::AtOnce;
            tracing::info!(resource, "server does not stream lists, reading them at once");
        } else if kind == Kind::Service && self.fields.take().is_some() {
            tracing::info!(resource, "server does not filter by clusterIP, filtering here");
        } else {
            return false;
        }
        true
    }

    /// What Services can be served without is reported as empty, so that nobody waits for it. What is known already
    /// stays, where only we are refused: a token that is being renewed, a server that has not read its rules yet.
    async fn refused(&self, error: &watcher::Error, kind: Kind, place: &mut Place) -> End {
        let reason = words(error, kind);
        if place.known && is_about_us(error) {
            self.view.stale(kind, &reason);
            return End::Later(place.delay.next());
        }
        let told = match kind {
            Kind::ServiceCidr => {
                tracing::debug!(reason, "no ServiceCIDRs");
                self.events.send(Event::Synced(kind)).await
            }
            Kind::Node => {
                self.view.stale(kind, &reason);
                self.events.send(Event::Synced(kind)).await
            }
            Kind::Service | Kind::Slice => {
                self.view.stale(kind, &reason);
                Ok(())
            }
        };
        match (told, kind) {
            (Err(_), _) => End::Closed,
            (Ok(()), Kind::ServiceCidr) => End::Later(self.pace.absent),
            (Ok(()), Kind::Service | Kind::Slice | Kind::Node) => End::Later(place.delay.next()),
        }
    }

    fn stalled(&mut self, kind: Kind, place: &mut Place) -> End {
        if place.streaming && self.ask_less(kind) {
            return End::Anew;
        }
        self.view.stale(kind, "the server does not finish its answer");
        End::Later(place.delay.next())
    }
}

impl Place {
    fn note<K>(&mut self, event: &watcher::Event<K>, list: ListMode) {
        match event {
            watcher::Event::Init => {
                self.listing = true;
                self.streaming = list == ListMode::Streaming;
            }
            watcher::Event::InitDone => (self.listing, self.known) = (false, true),
            watcher::Event::InitApply(_) | watcher::Event::Apply(_) | watcher::Event::Delete(_) => {
            }
        }
    }
}
