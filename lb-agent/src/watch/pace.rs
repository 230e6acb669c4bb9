//! Timeouts and retry intervals towards the API server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How patient we are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// First delay after a failure; it doubles.
    pub(super) first: Duration,
    /// Longest delay. With the time that a connection takes it bounds how late a change is seen after an outage.
    pub(super) most: Duration,
    /// Longest delay before a whole list that follows from a failure: each costs the server as much as a start.
    pub(super) relist: Duration,
    /// A watch that lasted so long was one, whether or not it brought something.
    pub(super) lasting: Duration,
    /// Longest silence on a watch; servers send a bookmark about each minute.
    pub(super) silence: Duration,
    /// Longest silence within a list.
    pub(super) list_silence: Duration,
    /// Longest silence within a streamed list, which an old server may never end.
    pub(super) stream_silence: Duration,
    /// How long a way of asking that the server did not understand is left alone.
    pub(super) avoided: Duration,
    /// How often to look whether a resource has appeared that the server did not have.
    pub(super) absent: Duration,
    /// How often to look whether we may read what Services can be served without.
    pub(super) refused: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(200),
            most: Duration::from_secs(3),
            relist: Duration::from_secs(30),
            lasting: Duration::from_secs(1),
            silence: Duration::from_secs(90),
            list_silence: Duration::from_mins(1),
            stream_silence: Duration::from_secs(10),
            avoided: Duration::from_mins(10),
            absent: Duration::from_mins(10),
            refused: Duration::from_mins(1),
        }
    }
}

/// Delays that double, with some chance in them, until something went well.
#[derive(Debug)]
pub(super) struct Delay {
    first: Duration,
    most: Duration,
    current: Duration,
}

impl Delay {
    /// Delays from `first` up to `most`.
    pub(super) const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, current: first }
    }

    pub(super) fn next(&mut self) -> Duration {
        let current = self.current;
        self.current = (2 * current).min(self.most);
        // Agents of many nodes must not come back in step.
        current.mul_f64(f64::midpoint(chance(), 1.0))
    }

    /// Something went well: the next delay is the first again.
    pub(super) const fn reset(&mut self) {
        self.current = self.first;
    }
}

/// A number from 0 to 1, of no cryptographic use.
pub(super) fn chance() -> f64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    f64::from(clock.subsec_nanos() % 1_000) / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound_until_something_goes_well() {
        let pace = Pace::default();
        let mut delay = Delay::new(pace.first, pace.most);
        let delays: Vec<_> = (0..20).map(|_| delay.next()).collect();
        assert!(delays[0] <= pace.first && delays[4] > pace.first);
        assert!(delays.iter().all(|delay| *delay <= pace.most));
        delay.reset();
        assert!(delay.next() <= pace.first);
    }
}
