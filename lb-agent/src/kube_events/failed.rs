//! Events that wait for another attempt.

use std::collections::VecDeque;
use std::future::pending;
use std::time::Instant;

use k8s_openapi::api::events::v1::Event;
use tokio::time::sleep_until;

use super::WAITING;

/// Largest number of attempts to write an Event, as in client-go.
const ATTEMPTS: u32 = 12;

/// The Events that could not be written, with the number of attempts, by the time of the next one.
#[derive(Debug, Default)]
pub(super) struct Failed(VecDeque<(Event, u32, Instant)>);

impl Failed {
    /// Adds an Event for another attempt, unless it had enough of them, or too many Events wait.
    pub(super) fn add(&mut self, event: Event, attempts: u32, at: Instant) {
        if attempts < ATTEMPTS && self.0.len() < WAITING {
            self.0.push_back((event, attempts, at));
        }
    }

    /// Lets no attempt come before this time.
    pub(super) fn postpone(&mut self, until: Instant) {
        for (_, _, at) in &mut self.0 {
            *at = (*at).max(until);
        }
    }

    /// Takes the first Event once its next attempt is due, with the number of attempts.
    pub(super) async fn due(&mut self) -> Option<(Event, u32)> {
        match self.0.front() {
            Some((_, _, at)) => sleep_until((*at).into()).await,
            None => pending().await,
        }
        self.0.pop_front().map(|(event, attempts, _)| (event, attempts))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use jiff::Timestamp;

    use super::*;
    use crate::kube_events::RETRY;
    use crate::kube_events::object::event;
    use crate::kube_events::tests::content;

    /// After an attempt that fails, the others wait as well: a server that is back is not asked for all at once.
    #[test]
    fn attempts_wait_for_the_server_together() {
        let event = || event(&content(""), "n", Timestamp::UNIX_EPOCH);
        let (mut failed, now) = (Failed::default(), Instant::now());
        failed.add(event(), 1, now);
        failed.postpone(now + RETRY);
        failed.add(event(), 1, now + RETRY);
        assert!(failed.0.iter().all(|(_, _, at)| *at == now + RETRY));
    }

    #[test]
    fn attempts_and_waiting_events_are_limited() {
        let event = || event(&content(""), "n", Timestamp::UNIX_EPOCH);
        let (mut failed, now) = (Failed::default(), Instant::now());
        assert!(failed.due().now_or_never().is_none(), "there is none");
        failed.add(event(), ATTEMPTS, now);
        assert!(failed.0.is_empty());
        for _ in 0..=WAITING {
            failed.add(event(), 1, now);
        }
        assert_eq!(failed.0.len(), WAITING);
    }
}
