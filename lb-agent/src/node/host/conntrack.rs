//! Timeouts of netfilter's connections (`net.netfilter.nf_conntrack_*`), which must not end before those of flows.
//!
//! Rules of a CNI that masquerade packets of pods give the source of a reply another port if netfilter has forgotten
//! its connection, and the client resets it: netfilter forgets a half-closed one after 60 s. kube-proxy sets these
//! timeouts at its start (contract 8.5). They belong to the network namespace. The earlier values are saved, and
//! `lb-agent cleanup` restores them.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use lb_common::flow::Lifetimes;
use serde::{Deserialize, Serialize};
use tracing::{debug, info};

use super::error::Error;
use super::record;

/// The directory of the timeouts. The files appear when a rule or a container runtime first needs connections.
const DIRECTORY: &str = "/proc/sys/net/netfilter";
/// The longest timeout that a kernel takes, in seconds: `proc_dointvec_jiffies` refuses more ticks than an `int` has,
/// and there are at most 1,000 in a second.
const LONGEST: u32 = i32::MAX.cast_unsigned() / 1_000;

/// The timeouts that were changed, by the names of their files.
type Changes = BTreeMap<String, TimeoutChange>;

/// A timeout that was changed, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TimeoutChange {
    before: u32,
    written: u32,
}

/// The timeouts of netfilter's connections of this network namespace.
#[derive(Clone, Debug)]
pub struct NetfilterTimeouts {
    /// The file with the earlier values.
    pub record: PathBuf,
    /// The lifetimes of the data path's flows.
    pub lifetimes: Lifetimes,
}

/// A timeout that was shorter than the lifetime of flows, and whether it was raised.
#[derive(Debug)]
pub struct Raise {
    name: &'static str,
    change: TimeoutChange,
    outcome: Result<(), Error>,
}

impl Raise {
    /// Writes it to the log. A failure is found again every 30 s, and [`problem`] names it as well.
    pub fn log(&self) {
        let Self { name, change: TimeoutChange { before, written }, outcome } = self;
        match outcome {
            Ok(()) => info!(name, before, written, "timeout of netfilter raised to that of flows"),
            Err(error) => {
                let error = crate::chain(error);
                debug!(name, before, written, error, "timeout of netfilter not raised");
            }
        }
    }
}

impl Display for Raise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, change: TimeoutChange { before, written }, outcome } = self;
        match outcome {
            Ok(()) => write!(f, "raised net.netfilter.{name} from {before} to {written} s"),
            Err(error) => {
                let error = crate::chain(error);
                write!(
                    f,
                    "could not raise net.netfilter.{name} from {before} to {written} s: {error}"
                )
            }
        }
    }
}

impl NetfilterTimeouts {
    /// Raises the timeouts that are shorter than the lifetimes of flows.
    ///
    /// `/proc/sys` is read-only in a container that is not privileged: then [`problem`] names those that stay short.
    pub fn raise(&self) -> Vec<Raise> {
        self.raise_in(Path::new(DIRECTORY))
    }

    fn raise_in(&self, directory: &Path) -> Vec<Raise> {
        let raise = |(name, change): (&'static str, TimeoutChange)| {
            let outcome = self.write(directory, name, change);
            Raise { name, change, outcome }
        };
        short(directory, &self.lifetimes).into_iter().map(raise).collect()
    }

    fn write(&self, directory: &Path, name: &str, change: TimeoutChange) -> Result<(), Error> {
        let failed = |error| Error::System("timeout of netfilter", error);
        // The file is opened before the record is written: what cannot be changed must not be restored.
        let mut file = OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(directory.join(name))
            .map_err(failed)?;
        // The record is written before the value, so that cleanup can restore it after a crash.
        keep(&self.record, name, change)?;
        file.write_all(change.written.to_string().as_bytes()).map_err(failed)
    }
}

/// Returns the problem that netfilter may forget connections before the data path does.
pub fn problem(lifetimes: &Lifetimes) -> Option<String> {
    problem_in(Path::new(DIRECTORY), lifetimes)
}

fn problem_in(directory: &Path, lifetimes: &Lifetimes) -> Option<String> {
    let short = short(directory, lifetimes);
    let setting =
        |(name, change): &(&str, TimeoutChange)| format!("net.netfilter.{name}={}", change.written);
    let settings: Vec<_> = short.iter().map(setting).collect();
    (!short.is_empty()).then(|| {
        format!(
            "netfilter forgets connections before they expire here, and rules that masquerade packets of pods then \
             change late replies: run lb-agent init as a privileged process, or sysctl -w {}",
            settings.join(" ")
        )
    })
}

/// Restores the values of a record, except for those that were changed since, and removes it; false if there is none.
pub(super) fn restore(record: &Path) -> Result<bool, Error> {
    restore_in(Path::new(DIRECTORY), record)
}

fn restore_in(directory: &Path, record: &Path) -> Result<bool, Error> {
    let Some(changes) = record::read::<Changes>(record) else { return Ok(false) };
    let mut outcome = Ok(());
    for (name, TimeoutChange { before, written }) in changes {
        // Without the file the kernel module of the timeouts was unloaded.
        if read(directory, &name) == Some(written)
            && let Err(error) = fs::write(directory.join(&name), before.to_string())
        {
            outcome = Err(Error::System("timeout of netfilter", error));
        }
    }
    // After a failure the record stays, so that cleanup can be repeated.
    outcome?;
    record::remove(record).map(|()| true)
}

/// Leaves the values as they are, and removes the record; false if there is none.
pub(super) fn hand_over(record: &Path) -> Result<bool, Error> {
    if !record.exists() {
        return Ok(false);
    }
    record::remove(record).map(|()| true)
}

/// Saves a change of a timeout. The value before it is the original one, unless an earlier run has written it.
fn keep(record: &Path, name: &str, mut change: TimeoutChange) -> Result<(), Error> {
    let mut saved: Changes = record::read(record).unwrap_or_default();
    if let Some(earlier) = saved.get(name).filter(|earlier| earlier.written == change.before) {
        change.before = earlier.before;
    }
    saved.insert(name.to_owned(), change);
    record::write(record, &saved)
}

/// Returns the changes that the lifetimes of flows require.
fn short(directory: &Path, lifetimes: &Lifetimes) -> Vec<(&'static str, TimeoutChange)> {
    // Each with the kernel's default. A lifetime that equals it raises nothing: an operator may have chosen a shorter
    // timeout, and a 0 of kube-proxy's configuration, which leaves the kernel's value, becomes this lifetime.
    let all = [
        ("nf_conntrack_tcp_timeout_established", lifetimes.open, 432_000),
        ("nf_conntrack_tcp_timeout_close_wait", lifetimes.half_closed, 60),
        ("nf_conntrack_udp_timeout", lifetimes.unreplied, 30),
        ("nf_conntrack_udp_timeout_stream", lifetimes.stream, 120),
        ("nf_conntrack_sctp_timeout_established", lifetimes.sctp, 210),
    ];
    let of = |(name, lifetime, usual): (&'static str, u32, u32)| {
        // A kernel without connection tracking has no such file, and forgets nothing.
        let (before, written) = (read(directory, name)?, lifetime.min(LONGEST));
        let is_short = lifetime != usual && before < written;
        is_short.then_some((name, TimeoutChange { before, written }))
    };
    all.into_iter().filter_map(of).collect()
}

fn read(directory: &Path, name: &str) -> Option<u32> {
    fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSE_WAIT: &str = "nf_conntrack_tcp_timeout_close_wait";

    fn directory(values: &[(&str, &str)]) -> (tempfile::TempDir, NetfilterTimeouts) {
        let directory = tempfile::tempdir().unwrap();
        for (name, value) in values {
            fs::write(directory.path().join(name), value).unwrap();
        }
        let record = directory.path().join("below/conntrack.json");
        (directory, NetfilterTimeouts { record, lifetimes: Lifetimes::default() })
    }

    fn raised(all: &NetfilterTimeouts, directory: &Path) -> Vec<String> {
        all.raise_in(directory).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_shorter_timeouts_are_raised_and_then_restored() {
        let (long, short) = ("nf_conntrack_tcp_timeout_established", CLOSE_WAIT);
        let (directory, all) = directory(&[(long, "432000\n"), (short, "60\n")]);
        let path = directory.path();
        let problem = problem_in(path, &all.lifetimes).unwrap();
        assert!(problem.ends_with(&format!("sysctl -w net.netfilter.{short}=3600")), "{problem}");
        assert_eq!(raised(&all, path), [format!("raised net.netfilter.{short} from 60 to 3600 s")]);
        assert_eq!([long, short].map(|name| read(path, name)), [Some(432_000), Some(3_600)]);
        assert!(raised(&all, path).is_empty());
        assert_eq!(problem_in(path, &all.lifetimes), None);
        assert!(restore_in(path, &all.record).unwrap());
        assert_eq!([long, short].map(|name| read(path, name)), [Some(432_000), Some(60)]);
        assert!(!restore_in(path, &all.record).unwrap(), "the record is gone");
    }

    #[test]
    fn value_that_was_changed_since_is_not_restored() {
        let (directory, all) = directory(&[(CLOSE_WAIT, "60\n")]);
        let path = directory.path();
        assert_eq!(raised(&all, path).len(), 1);
        fs::write(path.join(CLOSE_WAIT), "7200\n").unwrap();
        assert!(restore_in(path, &all.record).unwrap());
        assert_eq!(read(path, CLOSE_WAIT), Some(7_200));
    }

    #[test]
    fn value_before_the_first_of_several_changes_is_restored() {
        let (directory, mut all) = directory(&[(CLOSE_WAIT, "60\n")]);
        let path = directory.path();
        assert_eq!(raised(&all, path).len(), 1);
        all.lifetimes.half_closed = 7_200;
        assert_eq!(raised(&all, path).len(), 1);
        assert!(restore_in(path, &all.record).unwrap());
        assert_eq!(read(path, CLOSE_WAIT), Some(60));
    }

    #[test]
    fn timeout_that_cannot_be_written_leaves_no_record() {
        let (directory, all) = directory(&[(CLOSE_WAIT, "60\n")]);
        let gone = directory.path().join("gone");
        let change = TimeoutChange { before: 60, written: 3_600 };
        all.write(&gone, CLOSE_WAIT, change).unwrap_err();
        assert!(!all.record.exists());
    }

    #[test]
    fn lifetimes_that_are_the_kernels_defaults_raise_nothing() {
        let names = ["nf_conntrack_udp_timeout", "nf_conntrack_tcp_timeout_established"];
        let (directory, mut all) = directory(&names.map(|name| (name, "3\n")));
        all.lifetimes.open = 432_000;
        assert!(raised(&all, directory.path()).is_empty());
        all.lifetimes.unreplied = 90;
        let line = format!("raised net.netfilter.{} from 3 to 90 s", names[0]);
        assert_eq!(raised(&all, directory.path()), [line]);
    }

    #[test]
    fn timeouts_are_as_long_as_the_kernel_takes() {
        let (directory, mut all) = directory(&[(CLOSE_WAIT, "60\n")]);
        all.lifetimes.half_closed = u32::MAX;
        assert_eq!(raised(&all, directory.path()).len(), 1);
        assert_eq!(read(directory.path(), CLOSE_WAIT), Some(LONGEST));
        assert_eq!(problem_in(directory.path(), &all.lifetimes), None);
    }

    #[test]
    fn values_are_handed_over_as_they_are() {
        let (directory, all) = directory(&[(CLOSE_WAIT, "60\n")]);
        assert_eq!(raised(&all, directory.path()).len(), 1);
        assert!(hand_over(&all.record).unwrap());
        assert!(!restore_in(directory.path(), &all.record).unwrap());
        assert_eq!(read(directory.path(), CLOSE_WAIT), Some(3_600));
    }

    #[test]
    fn without_connection_tracking_there_is_no_problem() {
        let (directory, all) = directory(&[]);
        assert_eq!(problem_in(directory.path(), &all.lifetimes), None);
        assert!(raised(&all, directory.path()).is_empty());
    }
}
