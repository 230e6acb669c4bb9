//! The clock of the grace period, after which rows and ranges that a change released are reused.
//!
//! It stands still from the planning of a change until the maps have all of it. Until then packets may use the old
//! entries, however long a write takes. It is set forward after a grace period of the kernel.

use std::time::{Duration, Instant};

/// A clock that can be stopped.
#[derive(Debug)]
pub(super) struct GraceClock {
    passed: Duration,
    since: Option<Instant>,
}

impl GraceClock {
    /// Makes a clock that shows zero and runs.
    pub(super) const fn started(now: Instant) -> Self {
        Self { passed: Duration::ZERO, since: Some(now) }
    }

    pub(super) fn shows(&self, now: Instant) -> Duration {
        self.passed + self.since.map_or(Duration::ZERO, |since| now.duration_since(since))
    }

    /// Stops the clock, and returns the time that it shows until it runs again.
    pub(super) fn stop(&mut self, now: Instant) -> Duration {
        self.passed = self.shows(now);
        self.since = None;
        self.passed
    }

    /// Sets the clock forward.
    pub(super) const fn skip(&mut self, time: Duration) {
        self.passed = self.passed.saturating_add(time);
    }

    /// Lets the clock run again if it is stopped.
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
    fn stopped_clock_stands_until_it_goes_on() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut clock = GraceClock::started(began);
        assert_eq!(clock.stop(at(2)), Duration::from_secs(2));
        assert_eq!(clock.stop(at(5)), Duration::from_secs(2));
        clock.go_on(at(9));
        clock.go_on(at(10));
        assert_eq!(clock.shows(at(12)), Duration::from_secs(5));
        clock.skip(Duration::from_secs(3));
        assert_eq!(clock.shows(at(13)), Duration::from_secs(9));
    }
}
