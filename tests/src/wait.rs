//! Waits for a condition, with a deadline.
//!
//! This is the only place of the harness where time passes without work; all other code polls through it. A wait
//! returns the value that the condition found, so that a test can assert on it without asking again.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

mod late;

/// The pause between two polls: short compared with any deadline, long compared with the cost of a poll.
const PAUSE: Duration = Duration::from_millis(20);
/// After this time a wait polls less often: after a twentieth of the time that has passed.
const LONG: Duration = Duration::from_secs(2);
const SHARE: u32 = 20;

/// Polls `condition` until it returns a value; `what` names the condition in the error.
pub fn wait_until<T>(
    within: Duration,
    what: &str,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    try_wait_until(within, what, || Ok(condition()))
}

/// Polls `condition` until it returns a value, and gives up at once if it returns an error.
///
/// For waits that can become hopeless: a server that has ended will not answer later.
pub fn try_wait_until<T>(
    within: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let began = Instant::now();
    let mut wait = late::Wait::new(what);
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        let passed = began.elapsed();
        wait.passed(passed);
        let left = within.saturating_sub(passed);
        if left.is_zero() {
            bail!("{what}: not within {} s", within.as_secs_f64());
        }
        pass(pause_after(passed).min(left));
    }
}

/// The pause after a poll, by the time since the first poll.
fn pause_after(passed: Duration) -> Duration {
    if passed < LONG { PAUSE } else { passed / SHARE }
}

/// Lets time pass: a pause between two polls, or a random delay. Tests must not use it to wait for an event.
///
/// A thread that was joined may have left a wake-up behind (scoped threads do), which ends one park at once.
pub fn pass(time: Duration) {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::park_timeout(left);
    }
}

/// Polls `condition` until it succeeds; after the deadline, its last error is the cause.
pub fn wait_until_ok<T>(
    within: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut last = None;
    let found = wait_until(within, what, || condition().map_err(|error| last = Some(error)).ok());
    match (found, last) {
        (Err(timeout), Some(cause)) => Err(cause.context(timeout)),
        (found, _) => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_the_condition_is_returned() {
        let mut looks = 0;
        let found = wait_until(Duration::from_mins(1), "third look", || {
            looks += 1;
            (looks == 3).then_some("found")
        });
        assert_eq!(found.unwrap(), "found");
    }

    #[test]
    fn long_waits_look_more_rarely() {
        let after = |seconds| pause_after(Duration::from_secs(seconds));
        assert_eq!([0, 1].map(after), [PAUSE; 2]);
        assert_eq!([2, 20].map(after), [100, 1_000].map(Duration::from_millis));
    }

    #[test]
    fn timeout_names_the_condition_and_its_last_error() {
        let never =
            wait_until_ok(Duration::ZERO, "blue moon", || -> Result<()> { bail!("it is yellow") });
        assert_eq!(format!("{:#}", never.unwrap_err()), "blue moon: not within 0 s: it is yellow");
    }

    #[test]
    fn hopeless_wait_ends_at_once() {
        let start = Instant::now();
        let hopeless: Result<()> =
            try_wait_until(Duration::from_mins(1), "answer", || bail!("server has ended"));
        assert!(hopeless.is_err());
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
