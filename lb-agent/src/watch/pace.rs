//! How long to wait for a server, and before it is asked again.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How patient we are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// First delay after a failure; it doubles.
    pub(super) first: Duration,
    /// Longest delay.
    pub(super) most: Duration,
    /// A list that makes no progress for so long is asked for again.
    pub(super) stall: Duration,
    /// A streamed list that makes no progress for so long is asked for at once.
    pub(super) stream_stall: Duration,
    /// How often to look whether a resource has appeared that the server did not have.
    pub(super) absent: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(200),
            most: Duration::from_secs(10),
            stall: Duration::from_mins(1),
            stream_stall: Duration::from_secs(10),
            absent: Duration::from_mins(10),
        }
    }
}

/// Delays that double, with some chance in them, and start again after a quiet time.
pub(super) struct Delay {
    pace: Pace,
    current: Duration,
    last: Option<Instant>,
}

impl Delay {
    /// For what goes by this pace.
    pub(super) const fn new(pace: Pace) -> Self {
        Self { pace, current: pace.first, last: None }
    }

    /// The next one.
    pub(super) fn next(&mut self) -> Duration {
        let quiet = self.last.is_none_or(|last| last.elapsed() > 4 * self.pace.most);
        self.current = if quiet { self.pace.first } else { (2 * self.current).min(self.pace.most) };
        self.last = Some(Instant::now());
        // Agents of many nodes must not come back in step.
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.current.mul_f64(0.5 + f64::from(clock.subsec_nanos() % 1000) / 1000.0)
    }
}
