//! Timeouts and retry intervals for the API server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Timeouts and intervals; tests have shorter ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The first delay after a failure. Each further one is twice as long.
    pub(super) first: Duration,
    /// The longest delay. Together with the time to connect it limits how late a change is seen after an outage.
    pub(super) most: Duration,
    /// The longest delay before a whole list that follows from a failure: each list costs the server as much as a
    /// start.
    pub(super) relist: Duration,
    /// The time after which a watch counts as good, whether or not it brought something.
    pub(super) lasting: Duration,
    /// The longest silence on a watch; servers send a bookmark about once a minute.
    pub(super) silence: Duration,
    /// The longest silence within a list.
    pub(super) list_silence: Duration,
    /// The longest silence within a streamed list, which an old server may never end.
    pub(super) stream_silence: Duration,
    /// How long a request option is not used after the server did not understand it.
    pub(super) avoided: Duration,
    /// Interval of the checks whether a resource that the server lacked has appeared.
    pub(super) absent: Duration,
    /// Interval of the checks whether an optional kind is readable now.
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

/// Delays that double, with a random part, until a success.
#[derive(Debug)]
pub(super) struct Delay {
    first: Duration,
    most: Duration,
    current: Duration,
}

impl Delay {
    /// Makes delays from `first` up to `most`.
    pub(super) const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, current: first }
    }

    pub(super) fn next(&mut self) -> Duration {
        let current = self.current;
        self.current = (2 * current).min(self.most);
        // Agents of many nodes must not retry in step.
        current.mul_f64(f64::midpoint(chance(), 1.0))
    }

    /// Resets the delay to the first after a success.
    pub(super) const fn reset(&mut self) {
        self.current = self.first;
    }
}

/// Returns a number from 0 to 1, unfit for cryptography.
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
