//! The time limit of the whole run, and the seconds that each file of tests took in its last run.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::{picture, tree};
use crate::{step, workspace};

/// The expected seconds for a test file that has never run here.
const UNKNOWN: f64 = 45.0;
/// The time after the end of the budget at which the steps before the root tests are killed.
const GRACE: Duration = Duration::from_secs(10);

/// Seconds by the name of a test file.
pub(super) type Times = BTreeMap<String, f64>;

/// The time budget of a run, which may be unlimited.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    began: Instant,
    longest: Option<Duration>,
}

impl Budget {
    /// A budget that begins now.
    pub(super) fn new(longest: Option<Duration>) -> Self {
        Self { began: Instant::now(), longest }
    }

    /// The end of the budget; `None` if it is unlimited.
    pub(super) fn end(&self) -> Option<Instant> {
        self.longest.map(|longest| self.began + longest)
    }

    /// The time since the budget began.
    pub(super) fn spent(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether work that took this number of seconds last time still fits, on a machine with this slowness.
    pub(super) fn has_time(&self, seconds: f64, slowness: f64) -> bool {
        let needed = Duration::from_secs_f64(seconds * slowness);
        self.longest.is_none_or(|longest| self.spent() + needed <= longest)
    }

    /// Ends the run with a description of its processes if it is still in the steps before the root tests when the time
    /// is over. Dropping the value ends the watch.
    pub(super) fn watch(&self) -> Option<Sender<()>> {
        let left = self.longest?.saturating_sub(self.spent()) + GRACE;
        let (watch, ended) = mpsc::channel::<()>();
        drop(thread::spawn(move || {
            if ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                give_up(process::id());
            }
        }));
        Some(watch)
    }
}

#[expect(clippy::exit, reason = "the main thread waits for a process that may never end")]
fn give_up(top: u32) {
    let step = step::current().unwrap_or_default();
    eprintln!("error: out of time in step `{step}`\n{}", picture::of(top));
    tree::end_below(top);
    println!("out of time in step `{step}`: no test with root was run\n0 passed, 0 failed");
    process::exit(1);
}

/// Parses a duration such as `70m`, `90s` or `2h`.
pub(super) fn duration(text: &str) -> Result<Duration> {
    let unit = text.chars().last().context("a duration such as 70m")?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        _ => bail!("{text}: a duration ends with s, m or h, such as 70m"),
    };
    let number = text.trim_end_matches(unit);
    let number: u64 = number.parse().with_context(|| format!("{text}: no duration like 70m"))?;
    ensure!(number > 0, "{text}: no time at all");
    Ok(Duration::from_secs(number * seconds))
}

/// The path of the file with the times of the last run.
fn file() -> Result<PathBuf> {
    Ok(workspace::cache()?.join("test-seconds.json"))
}

/// Returns the seconds of each test file in its last run; empty without such a file.
pub(super) fn times() -> Times {
    let text = file().ok().and_then(|file| fs::read_to_string(file).ok());
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Returns the expected seconds of a test file.
pub(super) fn expected(times: &Times, name: &str) -> f64 {
    times.get(name).copied().unwrap_or(UNKNOWN)
}

/// Stores the times of these files, and keeps the times of others.
pub(super) fn keep(taken: &Times) -> Result<()> {
    let mut all = times();
    all.extend(taken.clone());
    let file = file()?;
    let directory = file.parent().context("a file in the cache")?;
    fs::create_dir_all(directory).with_context(|| format!("{}", directory.display()))?;
    let text = serde_json::to_string_pretty(&all)?;
    // The file is renamed at the end, because two runs may end at the same time.
    let unfinished = directory.join(format!("test-seconds.{}", process::id()));
    fs::write(&unfinished, text).with_context(|| format!("{}", unfinished.display()))?;
    fs::rename(&unfinished, &file).with_context(|| format!("{}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("70m").unwrap(), Duration::from_mins(70));
        assert_eq!(duration("90s").unwrap(), Duration::from_secs(90));
        for wrong in ["", "70", "m", "0m", "-1m", "1d"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn time_left_counts_the_last_time_and_the_machine() {
        let budget = Budget::new(Some(Duration::from_mins(2)));
        assert!(budget.has_time(100.0, 1.0) && !budget.has_time(100.0, 1.5));
        assert!(Budget::new(None).has_time(1e6, 8.0));
        assert!((expected(&Times::new(), "new") - UNKNOWN).abs() < f64::EPSILON);
    }
}
