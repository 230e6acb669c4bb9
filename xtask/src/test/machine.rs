//! How slow this machine is now, beside a quiet one with two CPUs: deadlines are multiplied by it.

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Seconds of the probe on a quiet machine (two CPUs at 3 GHz, a debug build of this program).
const QUIET: f64 = 0.10;
/// Rounds of arithmetic on each CPU.
const ROUNDS: u64 = 2_000_000;
/// Processes that are started and waited for, one after the other.
const PROCESSES: u32 = 20;
/// The largest factor: beyond it a deadline would be none.
const LARGEST: f64 = 8.0;

/// Measures how many times longer than on a quiet machine a fixed piece of work takes: 1 or more, in tenths.
pub(super) fn slowness() -> f64 {
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(arithmetic);
        }
        processes();
    });
    factor(began.elapsed())
}

fn factor(taken: Duration) -> f64 {
    let factor = (taken.as_secs_f64() / QUIET).clamp(1.0, LARGEST);
    (factor * 10.0).round() / 10.0
}

fn arithmetic() {
    let mut hash = 1_u64;
    for round in 0..ROUNDS {
        hash = (hash ^ round).wrapping_mul(0x0100_0000_01b3);
    }
    black_box(hash);
}

fn processes() {
    for _ in 0..PROCESSES {
        let mut command = Command::new("true");
        // Where there is no such program nothing is measured by it.
        drop(command.stdin(Stdio::null()).status());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factor_is_between_one_and_the_largest() {
        let quiet = Duration::from_secs_f64(QUIET);
        let close = |taken: Duration, expected: f64| (factor(taken) - expected).abs() < 0.05;
        assert!(close(quiet / 3, 1.0) && close(quiet * 3, 3.0) && close(quiet * 100, LARGEST));
        assert!((1.0..=LARGEST).contains(&slowness()));
    }
}
