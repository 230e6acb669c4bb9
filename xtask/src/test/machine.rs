//! The slowness of this machine at the moment, compared with a quiet machine with two CPUs: limits are multiplied by
//! it.

use std::fs;
use std::hint::black_box;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The seconds that the probe takes on a quiet machine (two CPUs at 3 GHz, a debug build of this program).
const QUIET: f64 = 0.10;
/// The rounds of arithmetic on each CPU.
const ROUNDS: u64 = 2_000_000;
/// The number of processes that are started and waited for, one after another.
const PROCESSES: u32 = 20;
/// The load average for each CPU that a run itself causes.
const OWN_LOAD: f64 = 2.0;
/// The largest factor: with a larger one, limits would have no effect.
const LARGEST: f64 = 8.0;

/// Measures how many times longer work takes than on a quiet machine: 1 or more, in tenths. The result is the larger of
/// two figures: the time of a fixed piece of work, and the number of tasks that waited for each CPU in the last minute,
/// which a short piece of work may not notice.
pub(super) fn slowness() -> f64 {
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(arithmetic);
        }
        processes();
    });
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    factor(began.elapsed(), waiting(&load))
}

fn factor(taken: Duration, waiting: f64) -> f64 {
    let factor = (taken.as_secs_f64() / QUIET).max(waiting).clamp(1.0, LARGEST);
    (factor * 10.0).round() / 10.0
}

/// Parses the first figure of `/proc/loadavg`, in units of the load that a run itself causes.
fn waiting(load: &str) -> f64 {
    let load = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    let cpus = thread::available_parallelism().map_or(1, Into::into);
    load / (OWN_LOAD * cpus as f64)
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
        // Without such a program, this part is not measured.
        drop(command.stdin(Stdio::null()).status());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factor_is_between_one_and_the_largest() {
        let quiet = Duration::from_secs_f64(QUIET);
        let close = |taken: Duration, expected: f64| (factor(taken, 0.5) - expected).abs() < 0.05;
        assert!(close(quiet / 3, 1.0) && close(quiet * 3, 3.0) && close(quiet * 100, LARGEST));
        assert!((factor(quiet, 4.0) - 4.0).abs() < 0.05);
        assert!(waiting("1000000.00 1.00 1.00 1/2 3\n") > LARGEST && waiting("") < 1.0);
        assert!((1.0..=LARGEST).contains(&slowness()));
    }
}
