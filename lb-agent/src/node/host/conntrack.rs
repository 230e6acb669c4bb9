//! Timeouts of netfilter's connections (`net.netfilter.nf_conntrack_*`), which must not end before those of flows.
//!
//! Rules of a CNI that masquerade packets of pods give the source of a reply another port if netfilter has forgotten
//! its connection, and the client resets it: netfilter forgets a half-closed one after 60 s. kube-proxy sets these
//! timeouts at its start (contract 8.5). They belong to the network namespace. The earlier values are saved, and
//! `lb-agent cleanup` restores them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lb_common::flow::Lifetimes;
use tracing::{debug, info};

use super::error::Error;
use super::record;

/// The directory of the timeouts. The files appear when a rule or a container runtime first needs connections.
const DIRECTORY: &str = "/proc/sys/net/netfilter";

/// Values of timeouts in seconds, by the names of their files.
type Values = BTreeMap<String, u32>;

/// The timeouts of netfilter's connections of this network namespace.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// The file with the earlier values.
    pub record: PathBuf,
    /// The lifetimes of the data path's flows.
    pub lifetimes: Lifetimes,
}

/// A timeout that is shorter than the lifetime of flows.
#[derive(Debug)]
struct Short {
    name: &'static str,
    /// In seconds, as is `wanted`.
    now: u32,
    wanted: u32,
}

impl Timeouts {
    /// Raises the timeouts that are shorter than the lifetimes of flows; returns one line for each.
    ///
    /// `/proc/sys` is read-only in a container that is not privileged: then [`problem`] names those that stay short.
    pub fn raise(&self) -> Vec<String> {
        self.raise_in(Path::new(DIRECTORY))
    }

    fn raise_in(&self, directory: &Path) -> Vec<String> {
        let raise = |it: &Short| {
            // Saved before the write, so that cleanup can restore the value after a crash.
            keep(&self.record, it)?;
            write(directory, it.name, it.wanted)
                .map_err(|error| Error::System("timeout of netfilter", error))
        };
        let mut raised = Vec::new();
        for short in short(directory, &self.lifetimes) {
            let Short { name, now, wanted } = short;
            match raise(&short) {
                Ok(()) => {
                    info!(name, now, wanted, "timeout of netfilter raised to that of flows");
                    raised.push(format!("raised net.netfilter.{name} from {now} to {wanted} s"));
                }
                Err(error) => {
                    let error = crate::chain(&error);
                    debug!(name, now, wanted, error, "timeout of netfilter not raised");
                }
            }
        }
        raised
    }
}

/// Returns the problem that netfilter may forget connections before the data path does.
pub fn problem(lifetimes: &Lifetimes) -> Option<String> {
    problem_in(Path::new(DIRECTORY), lifetimes)
}

/// Restores the values of a record and removes it; false if there is none.
pub(super) fn restore(record: &Path) -> Result<bool, Error> {
    restore_in(Path::new(DIRECTORY), record)
}

fn restore_in(directory: &Path, record: &Path) -> Result<bool, Error> {
    let Some(before) = record::read::<Values>(record) else { return Ok(false) };
    for (name, seconds) in before {
        match write(directory, &name, seconds) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::System("timeout of netfilter", error));
            }
            // The kernel module of the timeouts may have been unloaded.
            Ok(()) | Err(_) => {}
        }
    }
    record::remove(record).map(|()| true)
}

/// Saves the value of a timeout as the original one, unless an earlier run did.
fn keep(record: &Path, short: &Short) -> Result<(), Error> {
    let mut saved: Values = record::read(record).unwrap_or_default();
    if saved.contains_key(short.name) {
        return Ok(());
    }
    saved.insert(short.name.to_owned(), short.now);
    record::write(record, &saved)
}

fn problem_in(directory: &Path, lifetimes: &Lifetimes) -> Option<String> {
    let short = short(directory, lifetimes);
    let settings: Vec<_> =
        short.iter().map(|it| format!("net.netfilter.{}={}", it.name, it.wanted)).collect();
    (!short.is_empty()).then(|| {
        format!(
            "netfilter forgets connections before they expire here, and rules that masquerade packets of pods then \
             change late replies: run lb-agent init as a privileged process, or sysctl -w {}",
            settings.join(" ")
        )
    })
}

fn short(directory: &Path, lifetimes: &Lifetimes) -> Vec<Short> {
    let usual = Lifetimes::default();
    // kube-proxy leaves the timeouts of datagrams alone unless its configuration has them.
    let raised = |wanted: u32, usual: u32| if wanted > usual { wanted } else { 0 };
    let all = [
        ("nf_conntrack_tcp_timeout_established", lifetimes.open),
        ("nf_conntrack_tcp_timeout_close_wait", lifetimes.half_closed),
        ("nf_conntrack_udp_timeout", raised(lifetimes.unreplied, usual.unreplied)),
        ("nf_conntrack_udp_timeout_stream", raised(lifetimes.stream, usual.stream)),
    ];
    let of = |(name, wanted): (&'static str, u32)| {
        // A kernel without connection tracking has no such file, and forgets nothing.
        let now: u32 = fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok()?;
        (now < wanted).then_some(Short { name, now, wanted })
    };
    all.into_iter().filter_map(of).collect()
}

fn write(directory: &Path, name: &str, seconds: u32) -> io::Result<()> {
    // The kernel takes seconds as a signed number.
    let seconds = seconds.min(i32::MAX.cast_unsigned());
    fs::write(directory.join(name), seconds.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSE_WAIT: &str = "nf_conntrack_tcp_timeout_close_wait";

    fn directory(values: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, value) in values {
            fs::write(directory.path().join(name), value).unwrap();
        }
        directory
    }

    fn timeouts(directory: &tempfile::TempDir) -> Timeouts {
        let record = directory.path().join("below/conntrack.json");
        Timeouts { record, lifetimes: Lifetimes::default() }
    }

    #[test]
    fn only_shorter_timeouts_are_raised_and_then_restored() {
        let (long, short) = ("nf_conntrack_tcp_timeout_established", CLOSE_WAIT);
        let directory = directory(&[(long, "432000\n"), (short, "60\n")]);
        let (all, path) = (timeouts(&directory), directory.path());
        let problem = problem_in(path, &all.lifetimes).unwrap();
        assert!(problem.ends_with(&format!("sysctl -w net.netfilter.{short}=3600")), "{problem}");
        assert_eq!(all.raise_in(path), [format!("raised net.netfilter.{short} from 60 to 3600 s")]);
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
        assert_eq!([read(long), read(short)], ["432000\n", "3600"]);
        assert_eq!(all.raise_in(path), Vec::<String>::new());
        assert_eq!(problem_in(path, &all.lifetimes), None);
        assert!(restore_in(path, &all.record).unwrap());
        assert_eq!([read(long), read(short)], ["432000\n", "60"]);
        assert!(!restore_in(path, &all.record).unwrap(), "the record is gone");
    }

    #[test]
    fn the_first_value_is_the_one_that_is_restored() {
        let directory = directory(&[(CLOSE_WAIT, "60\n")]);
        let (all, path) = (timeouts(&directory), directory.path());
        assert_eq!(all.raise_in(path).len(), 1);
        fs::write(path.join(CLOSE_WAIT), "90\n").unwrap();
        assert_eq!(all.raise_in(path).len(), 1);
        assert!(restore_in(path, &all.record).unwrap());
        assert_eq!(fs::read_to_string(path.join(CLOSE_WAIT)).unwrap(), "60");
    }

    #[test]
    fn timeouts_of_datagrams_are_raised_only_to_configured_ones() {
        let name = "nf_conntrack_udp_timeout";
        let directory = directory(&[(name, "3\n")]);
        let mut all = timeouts(&directory);
        assert_eq!(all.raise_in(directory.path()), Vec::<String>::new());
        all.lifetimes.unreplied = 90;
        assert_eq!(
            all.raise_in(directory.path()),
            [format!("raised net.netfilter.{name} from 3 to 90 s")]
        );
    }

    #[test]
    fn without_connection_tracking_there_is_no_problem() {
        let directory = directory(&[]);
        let all = timeouts(&directory);
        assert_eq!(problem_in(directory.path(), &all.lifetimes), None);
        assert!(all.raise_in(directory.path()).is_empty());
    }
}
