//! The reaction to failures: how long to wait, whether to list again, and which request options to avoid.

use std::time::{Duration, Instant};

use super::Follow;
use crate::snapshot::{Event, ObjectKind};
use crate::watch::failure::{Consequence, Failure};
use crate::watch::objects::Objects;
use crate::watch::request::Page;

/// The number of watches in a row that bring nothing or that the server refuses, after which the objects are listed
/// again: a server or a proxy may serve lists and no watches. client-go lists again at once.
const FRUITLESS: u32 = 8;
/// The same for responses that a server or a proxy gives during an outage, after which all agents would list at once:
/// about two minutes.
const OUTAGE: u32 = 40;
/// The number of streamed lists in a row that the server fails, after which the list is requested in pages.
const STREAMS: u32 = 3;

/// Request options that the server did not understand, and until when they are not used.
#[derive(Debug, Default)]
pub(super) struct Avoided {
    streams: Option<Instant>,
    fields: Option<Instant>,
}

impl Avoided {
    /// Reports whether lists are not streamed at the moment.
    pub(super) fn has_streams(&self) -> bool {
        is_ahead(self.streams)
    }

    /// Reports whether objects are not selected by fields at the moment.
    pub(super) fn has_fields(&self) -> bool {
        is_ahead(self.fields)
    }
}

impl<O: Objects> Follow<O> {
    /// Counts a watch that brought nothing. After several of them the next request is a list; returns the delay before
    /// it.
    pub(super) fn watched_in_vain(&mut self, failure: &Failure) -> Duration {
        self.fruitless += 1;
        let most = if failure.is_outage() { OUTAGE } else { FRUITLESS };
        if self.fruitless < most {
            return Duration::ZERO;
        }
        self.fruitless = 0;
        self.relist(failure)
    }

    /// Handles a failure and returns how long to wait before the next request.
    pub(super) async fn failed(&mut self, failure: &Failure, is_listing: bool) -> Duration {
        let reason = failure.words(O::KIND);
        // After a failure of the server, the next one to respond may have a restored etcd.
        self.is_in_doubt |= failure.is_of_server();
        let is_streaming = is_listing && !self.page.is_later() && self.streams();
        let is_refused = matches!(failure, Failure::Refused { code: 500.., .. });
        self.failed_streams += u32::from(is_streaming && is_refused && !failure.is_outage());
        let is_of_stream = failure.is_of_stream() || self.failed_streams >= STREAMS;
        if is_streaming && is_of_stream && self.ask_less(&reason) {
            return Duration::ZERO;
        }
        match failure.consequence() {
            Consequence::AskLess if is_listing && self.ask_less(&reason) => return Duration::ZERO,
            Consequence::Refused if is_listing => return self.refused(failure, &reason).await,
            Consequence::Relist | Consequence::AskLess => return self.relist(failure),
            Consequence::RelistAnyAge => {
                self.newest.leave();
                return self.relist(failure);
            }
            Consequence::Again | Consequence::Refused => {}
        }
        self.view.stale(O::KIND, &reason);
        let pause = self.delay.next().max(failure.wait().unwrap_or_default());
        // A server that is busy (429) must not get lists in addition.
        let is_refused_watch =
            !is_listing && matches!(failure, Failure::Refused { code, .. } if *code != 429);
        if is_refused_watch { pause.max(self.watched_in_vain(failure)) } else { pause }
    }

    /// Forgets the position and returns how long to wait before the whole list.
    fn relist(&mut self, failure: &Failure) -> Duration {
        let reason = failure.words(O::KIND);
        // A token that expired between two pages would probably expire again, so the list comes in one piece.
        self.page = if self.page.is_later() { Page::Whole } else { Page::First };
        self.resume_from = None;
        tracing::info!(resource = O::KIND.resource(), reason, "listing again");
        self.view.stale(O::KIND, &reason);
        self.relist_delay.next().max(failure.wait().unwrap_or_default())
    }

    /// Stops using an option that an older server may not understand, for a while. False if there is none left.
    fn ask_less(&mut self, reason: &str) -> bool {
        // The option is avoided only for a while: the server may be upgraded, or the response may have come from a
        // proxy.
        let (resource, until) = (O::KIND.resource(), Instant::now() + self.pace.avoided);
        self.page = Page::First;
        // The refusal does not name the option that it means, so the options are given up one after the other.
        if self.streams() {
            self.avoided.streams = Some(until);
            tracing::info!(resource, reason, "list could not be streamed; listing in pages");
        } else if O::KIND == ObjectKind::Service && self.selected().fields.is_some() {
            self.avoided.fields = Some(until);
            tracing::info!(
                resource,
                reason,
                "API server does not filter by clusterIP; filtering in the agent"
            );
        } else {
            return false;
        }
        true
    }

    /// Reports a kind that is not essential for Services as empty, so that nothing waits for it.
    ///
    /// Known objects stay: the token may be in renewal, and a starting server may not have read its rules yet or not
    /// know all resources.
    async fn refused(&mut self, failure: &Failure, reason: &str) -> Duration {
        if self.known {
            self.view.stale(O::KIND, reason);
            return self.delay.next();
        }
        match O::KIND {
            ObjectKind::ServiceCidr => tracing::debug!(reason, "no ServiceCIDRs"),
            ObjectKind::Node | ObjectKind::Service | ObjectKind::Slice => {
                self.view.stale(O::KIND, reason);
            }
        }
        if matches!(O::KIND, ObjectKind::ServiceCidr | ObjectKind::Node)
            && self.send(Some(Event::Synced(O::KIND))).await.is_err()
        {
            // The receiver of the events is dropped, which ends this task, too.
            return self.pace.absent;
        }
        match O::KIND {
            ObjectKind::ServiceCidr if !failure.is_about_us() => self.pace.absent,
            // A server that has not read its rules yet refuses all clients.
            ObjectKind::ServiceCidr => self.pace.refused,
            ObjectKind::Service | ObjectKind::Slice | ObjectKind::Node => self.delay.next(),
        }
    }
}

fn is_ahead(time: Option<Instant>) -> bool {
    time.is_some_and(|time| Instant::now() < time)
}
