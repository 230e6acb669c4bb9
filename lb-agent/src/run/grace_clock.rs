//! The time by which what a change gave up is given out again. It stands from when a change is planned until the maps
//! have all of it: what packets may still find in an old entry is in use, however long a write takes.

use std::time::{Duration, Instant};

/// A clock that can be stopped.
#[derive(Debug)]
pub(super) struct GraceClock {
    passed: Duration,
    since: Option<Instant>,
}

impl GraceClock {
    /// One that goes from now on, and shows zero.
    pub(super) const fn started(now: Instant) -> Self {
        Self { passed: Duration::ZERO, since: Some(now) }
    }

    pub(super) fn shows(&self, now: Instant) -> Duration {
        self.passed + self.since.map_or(Duration::ZERO, |since| now.duration_since(since))
    }

    /// Stops it, and says what it shows until it goes on.
    pub(super) fn stop(&mut self, now: Instant) -> Duration {
        self.passed = self.shows(now);
        self.since = None;
        self.passed
    }

    /// Lets it go on, if it stands.
    pub(super) const fn go_on(&mut self, now: Instant) {
        if self.since.is_none() {
            self.since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_until_it_may_go_on() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut clock = GraceClock::started(began);
        assert_eq!(clock.stop(at(2)), Duration::from_secs(2));
        assert_eq!(clock.stop(at(5)), Duration::from_secs(2));
        clock.go_on(at(9));
        clock.go_on(at(10));
        assert_eq!(clock.shows(at(12)), Duration::from_secs(5));
    }
}
