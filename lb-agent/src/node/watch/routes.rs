//! The list of all routes, of which a router may have a million: taken beside the events, so that no link waits for it.

use std::collections::BTreeSet;
use std::time::Duration;

use rtnetlink::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{ChangeSource, Error};
use crate::node::ways::Ways;

/// All routes are listed at most this often.
const EACH: Duration = Duration::from_secs(1);

/// When routes were listed, and whether they are to be listed again.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// A list is to begin, and this asked for it.
    due: Option<ChangeSource>,
    /// When the last list began.
    began: Option<Instant>,
    /// One was complete; before that, a device may be taken for another's.
    is_known: bool,
    listing: Option<Listing>,
}

/// A list that is under way.
#[derive(Debug)]
struct Listing {
    task: JoinHandle<Result<Ways, rtnetlink::Error>>,
    source: ChangeSource,
    /// The ways that were known when it began.
    before: Ways,
}

impl Routes {
    /// The sockets are new: a list by the old ones is worth nothing, and events may have been missed between them.
    pub(super) fn restart(&mut self) {
        (self.due, self.listing) = (Some(ChangeSource::List), None);
    }

    /// All routes are to be listed, and once more where they are being listed: the change may be missing there.
    pub(super) fn ask(&mut self, source: ChangeSource) {
        self.due = Some(self.due.map_or(source, |before| before.min(source)));
    }

    pub(super) const fn is_known(&self) -> bool {
        self.is_known
    }

    /// Whether a list is to begin later.
    pub(super) const fn is_waiting(&self) -> bool {
        self.due.is_some() && self.listing.is_none()
    }

    /// When the next list may begin.
    pub(super) fn next(&self) -> Instant {
        self.began.map_or_else(Instant::now, |began| began + EACH)
    }

    /// Begins a list if one is due and may begin.
    pub(super) fn begin(&mut self, handle: &Handle, known: &Ways) {
        if !self.is_waiting() || self.next() > Instant::now() {
            return;
        }
        let Some(source) = self.due.take() else { return };
        let handle = handle.clone();
        let task = tokio::spawn(async move { Ways::list(&handle).await });
        self.listing = Some(Listing { task, source, before: known.clone() });
        self.began = Some(Instant::now());
    }

    /// Waits for the end of the list that is under way, if there is one, takes it over, and says what asked for it.
    pub(super) async fn take(&mut self, known: &mut Ways) -> Option<Result<ChangeSource, Error>> {
        let Listing { task, source, before } = self.listing.as_mut()?;
        let listed = match task.await.map_err(std::io::Error::from) {
            Ok(Ok(listed)) => listed,
            Ok(Err(error)) => return Some(Err(error.into())),
            Err(error) => return Some(Err(error.into())),
        };
        *known = merged(listed, before, known);
        let source = *source;
        (self.listing, self.is_known) = (None, true);
        Some(Ok(source))
    }
}

/// A list, with the events that came while it was taken: it may be older than they are, or newer.
fn merged(listed: Ways, before: &Ways, now: &Ways) -> Ways {
    let merge = |mut listed: BTreeSet<u32>, before: &BTreeSet<u32>, now: &BTreeSet<u32>| {
        listed.retain(|device| now.contains(device) || !before.contains(device));
        listed.extend(now.difference(before));
        listed
    };
    Ways {
        default: merge(listed.default, &before.default, &now.default),
        gateways: merge(listed.gateways, &before.gateways, &now.gateways),
        networks: merge(listed.networks, &before.networks, &now.networks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_came_meanwhile_are_not_undone_by_the_list() {
        let ways = |default: &[u32]| Ways {
            default: default.iter().copied().collect(),
            ..Ways::default()
        };
        // Device 2 has no route any more, device 3 is gone, device 4 got a route; 5 is known by the list alone.
        let merged = merged(ways(&[1, 3, 5]), &ways(&[1, 2, 3]), &ways(&[1, 2, 4]));
        assert_eq!(merged, ways(&[1, 4, 5]));
    }
}
