//! Lists all routes in a separate task, because a router may have a million routes and link events must not wait for
//! the list.

use std::collections::BTreeSet;
use std::time::Duration;

use rtnetlink::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{ChangeSource, Error};
use crate::node::routed::RoutedInterfaces;

/// Shortest interval between lists of all routes.
const EACH: Duration = Duration::from_secs(1);
/// The interval is at least this many times as long as the last list took: lists take a tenth of a CPU at most.
const SHARE: u32 = 10;

/// The schedule of lists of all routes: the time of the last one, and whether another one is due.
#[derive(Debug, Default)]
pub(super) struct RouteSchedule {
    /// How the need for another list was learnt; `None` if none is due.
    due: Option<ChangeSource>,
    /// Start of the last list.
    began: Option<Instant>,
    /// Duration of the last list.
    took: Duration,
    /// Whether a list was complete. Before that, the role of an interface may be decided wrongly.
    is_known: bool,
    listing: Option<Listing>,
}

/// A list under way.
#[derive(Debug)]
struct Listing {
    task: JoinHandle<Result<RoutedInterfaces, rtnetlink::Error>>,
    source: ChangeSource,
    /// The known routes when it began.
    before: RoutedInterfaces,
}

impl RouteSchedule {
    /// Starts again with new sockets: a list from the old ones is void, and events may have been missed between them.
    pub(super) fn restart(&mut self) {
        if self.listing.take().is_some() {
            self.record_end();
        }
        self.due = Some(ChangeSource::List);
    }

    /// Requests a list of all routes; another one if a list is under way, which may miss the change.
    pub(super) fn ask(&mut self, source: ChangeSource) {
        self.due = Some(self.due.map_or(source, |before| before.min(source)));
    }

    pub(super) const fn is_known(&self) -> bool {
        self.is_known
    }

    /// Reports whether a list is due and not yet under way.
    pub(super) const fn is_waiting(&self) -> bool {
        self.due.is_some() && self.listing.is_none()
    }

    /// Returns the time when the next list may begin.
    pub(super) fn next(&self) -> Instant {
        // Nothing is published before the first list.
        let interval = if self.is_known { EACH.max(self.took * SHARE) } else { EACH };
        self.began.map_or_else(Instant::now, |began| began + interval)
    }

    /// Records that the last list has ended.
    fn record_end(&mut self) {
        self.took = self.began.map_or(Duration::ZERO, |began| began.elapsed());
    }

    /// Begins a list, if one is due and may begin.
    pub(super) fn begin(&mut self, handle: &Handle, known: &RoutedInterfaces) {
        if !self.is_waiting() || self.next() > Instant::now() {
            return;
        }
        let Some(source) = self.due.take() else { return };
        let handle = handle.clone();
        // The list is read in a task of its own; events are applied meanwhile.
        let task = tokio::spawn(async move { RoutedInterfaces::list(&handle).await });
        self.listing = Some(Listing { task, source, before: known.clone() });
        self.began = Some(Instant::now());
    }

    /// Waits for the list under way, if there is one, and applies it. Returns how its need was learnt.
    pub(super) async fn take(
        &mut self,
        known: &mut RoutedInterfaces,
    ) -> Option<Result<ChangeSource, Error>> {
        let Listing { task, source, before } = self.listing.as_mut()?;
        let listed = match task.await.map_err(std::io::Error::from) {
            Ok(Ok(listed)) => listed,
            Ok(Err(error)) => return Some(Err(error.into())),
            Err(error) => return Some(Err(error.into())),
        };
        *known = merged(listed, before, known);
        let source = *source;
        (self.listing, self.is_known) = (None, true);
        self.record_end();
        Some(Ok(source))
    }
}

/// Merges a list with the events that came while it was taken: the list may be older or newer than each of them.
fn merged(
    listed: RoutedInterfaces,
    before: &RoutedInterfaces,
    now: &RoutedInterfaces,
) -> RoutedInterfaces {
    let merge = |mut listed: BTreeSet<u32>, before: &BTreeSet<u32>, now: &BTreeSet<u32>| {
        listed.retain(|device| now.contains(device) || !before.contains(device));
        listed.extend(now.difference(before));
        listed
    };
    RoutedInterfaces {
        default: merge(listed.default, &before.default, &now.default),
        gateways: merge(listed.gateways, &before.gateways, &now.gateways),
        networks: merge(listed.networks, &before.networks, &now.networks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each route that is removed asks for a list, and with a million routes one takes many seconds.
    #[test]
    fn lists_are_apart_in_proportion_to_their_duration() {
        let began = Instant::now();
        let after = |took, is_known| {
            let last =
                RouteSchedule { began: Some(began), took, is_known, ..RouteSchedule::default() };
            last.next().duration_since(began)
        };
        assert_eq!(after(Duration::from_millis(20), true), EACH);
        assert_eq!(after(Duration::from_secs(15), true), Duration::from_secs(150));
        assert_eq!(after(Duration::from_secs(15), false), EACH, "nothing is known yet");
        let earlier = began.checked_sub(Duration::from_secs(2)).expect("an uptime of two seconds");
        let mut schedule = RouteSchedule { began: Some(earlier), ..RouteSchedule::default() };
        schedule.record_end();
        assert!(schedule.took >= Duration::from_secs(2));
    }

    #[test]
    fn events_that_came_meanwhile_are_not_undone_by_the_list() {
        let routed = |default: &[u32]| RoutedInterfaces {
            default: default.iter().copied().collect(),
            ..RoutedInterfaces::default()
        };
        // Interface 2 has no route any more, 3 is gone, 4 got a route; 5 is known from the list alone.
        let merged = merged(routed(&[1, 3, 5]), &routed(&[1, 2, 3]), &routed(&[1, 2, 4]));
        assert_eq!(merged, routed(&[1, 4, 5]));
    }
}
