//! The trials: one run of the tests for each mutant.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, ensure};

use super::copy::{Built, Copy};

/// Seconds that the tests may take with a mutant; without one they take two. A loop that never ends is noticed by this.
const LIMIT: &str = "20";
/// How `timeout` says that the time was over.
const TIMED_OUT: i32 = 124;

/// The fate of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// A test failed.
    Caught,
    /// The tests did not end.
    TimedOut,
    /// No test failed.
    Missed,
    /// It is not in the code: the compiler refuses it, or it is in a constant.
    NotWoven,
}

impl Outcome {
    /// The word for a person.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::TimedOut => "caught by time",
            Self::Missed => "missed",
            Self::NotWoven => "not woven",
        }
    }
}

/// The tests must pass without a mutant.
pub(super) fn without(copy: &Copy, built: &Built) -> Result<()> {
    ensure!(
        run(copy, built, 0) == Outcome::Missed,
        "the tests fail without a mutant\nremedy: cargo test -p lb-common"
    );
    Ok(())
}

/// Tries each mutant that was built, `jobs` at once; one that is missed is `told` at once.
pub(super) fn all(
    copy: &Copy,
    built: &Built,
    jobs: usize,
    told: impl Fn(u32) + Sync,
) -> BTreeMap<u32, Outcome> {
    let numbers: Vec<u32> = built.woven.iter().copied().collect();
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run(copy, built, *number);
            if outcome == Outcome::Missed {
                told(*number);
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

fn run(copy: &Copy, built: &Built, number: u32) -> Outcome {
    let status = Command::new("timeout")
        .args([LIMIT.as_ref(), built.tests.as_os_str()])
        // The same cases for every mutant, and one failure is enough.
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
