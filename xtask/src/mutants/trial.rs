//! The trials: one run of the tests for each mutant.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, ensure};

use super::copy::{Built, Copy};
use super::listed::Mutant;

/// The limit in seconds for the tests with a mutant; without one they take two. It detects endless loops.
const LIMIT: &str = "20";
/// The exit code of `timeout` after the time limit.
const TIMED_OUT: i32 = 124;

/// The result of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// A test failed.
    Caught,
    /// The tests did not end.
    TimedOut,
    /// No test failed.
    Missed,
    /// The compiler refuses the mutant.
    Refused,
}

impl Outcome {
    /// The word in the output.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::TimedOut => "caught by time",
            Self::Missed => "missed",
            Self::Refused => "refused by the compiler",
        }
    }
}

/// Checks that the tests pass without a mutant.
pub(super) fn without(copy: &Copy, tests: &Path) -> Result<()> {
    ensure!(
        run(copy, tests, 0) == Outcome::Missed,
        "the tests fail without a mutant\nremedy: cargo test -p lb-common"
    );
    Ok(())
}

/// Tries mutants that cannot be woven, such as those in constants: each in a build of its own.
pub(super) fn alone(
    copy: &Copy,
    mutants: &[(&u32, &Mutant)],
    report: impl Fn(u32),
) -> Result<BTreeMap<u32, Outcome>> {
    let mut outcomes = BTreeMap::new();
    for (number, mutant) in mutants {
        // The program has this mutant whichever one is selected.
        let tests = copy.build_alone(mutant)?;
        let outcome = tests.map_or(Outcome::Refused, |tests| run(copy, &tests, **number));
        if outcome == Outcome::Missed {
            report(**number);
        }
        outcomes.insert(**number, outcome);
    }
    Ok(outcomes)
}

/// Tries each woven mutant, `jobs` at a time; a missed one is passed to `report` at once.
pub(super) fn all(
    copy: &Copy,
    built: &Built,
    jobs: usize,
    report: impl Fn(u32) + Sync,
) -> BTreeMap<u32, Outcome> {
    let numbers: Vec<u32> = built.woven.iter().copied().collect();
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run(copy, &built.tests, *number);
            if outcome == Outcome::Missed {
                report(*number);
            }
            if let Ok(mut outcomes) = outcomes.lock() {
                outcomes.insert(*number, outcome);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs {
            let _thread = scope.spawn(work);
        }
    });
    outcomes.into_inner().unwrap_or_default()
}

fn run(copy: &Copy, tests: &Path, number: u32) -> Outcome {
    let status = Command::new("timeout")
        .args([LIMIT.as_ref(), tests.as_os_str()])
        // Every mutant gets the same random cases, and the first failure ends the run.
        .args(["--quiet", "--test-threads", "1", "-Z", "unstable-options", "--fail-fast"])
        .env("LB_MUTANT", number.to_string())
        .env("RUSTC_BOOTSTRAP", "1")
        .env("INSTA_UPDATE", "no")
        .env("PROPTEST_RNG_SEED", "1")
        .env("PROPTEST_MAX_SHRINK_ITERS", "0")
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
        .current_dir(copy.package())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Outcome::Missed,
        Ok(status) if status.code() == Some(TIMED_OUT) => Outcome::TimedOut,
        Ok(_) | Err(_) => Outcome::Caught,
    }
}
