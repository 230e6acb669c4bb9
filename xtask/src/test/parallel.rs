//! The lanes, which run test programs in parallel, and the second run of failed tests at the end, alone.
//!
//! The first lane takes programs from the front of the list, all others from its back. Control planes, the heaviest,
//! are at the front, so that two of them meet only at the end; on both sides the longest come first, so that no lane
//! ends long after the others. Some programs run in two lanes when all others are done. Files are the unit, not tests,
//! because the tests of a file share a rig.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::iter;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};

use super::attempt::{Attempt, PROGRAM, Run};
use super::binaries::Binary;
use super::budget::{self, Budget, Times};
use super::events::{Case, Outcome};
use super::report::{Failure, Report, Timed};
use super::{binaries, machine};

/// Test files whose tests mostly wait (for a token to be read again, pauses between refusals, sweeps of flows, grace
/// periods of the kernel's maps, silence where a question must not be answered), and the number of their tests that run
/// in parallel. Each of the two shapes of pods has a shared rig of its own.
const WAITING: [(&str, &str); 28] = [
    ("compare", "2"),
    ("control_plane_connections", "2"),
    ("control_plane_odd_server", "2"),
    ("control_plane_role", "2"),
    ("control_plane_takeover", "2"),
    ("control_plane_watch", "2"),
    ("prog_run", "2"),
    ("topology_affinity", "2"),
    ("topology_agent", "2"),
    ("topology_capacity", "4"),
    ("topology_cards", "2"),
    ("topology_change", "2"),
    ("topology_close", "2"),
    ("topology_cluster_ip", "2"),
    ("topology_collision", "2"),
    ("topology_devices", "2"),
    ("topology_environment", "2"),
    ("topology_forged", "2"),
    ("topology_host", "2"),
    ("topology_icmp", "2"),
    ("topology_load_balancer", "2"),
    ("topology_loss", "2"),
    ("topology_mtu", "2"),
    ("topology_node", "2"),
    ("topology_node_port", "2"),
    ("topology_pins_removed", "2"),
    ("topology_policy", "2"),
    ("topology_takeover_verb", "2"),
];

/// Test files that count every lost packet, or every second until a change is seen: on two busy CPUs they would measure
/// the machine. They run after the others, two at a time, because each uses less than one CPU.
const QUIET: [&str; 3] =
    ["control_plane_contract", "control_plane_odd_server", "topology_restart_under_load"];
/// The number of lanes for [`QUIET`].
const QUIET_LANES: usize = 2;
/// The prefix of test files that start a control plane.
const CONTROL_PLANE: &str = "control_plane_";

/// The parameters of a run of test files.
pub(super) struct ParallelRun<'a> {
    pub(super) count: usize,
    /// The number of parallel tests in each file, if set by a person.
    pub(super) threads: Option<&'a str>,
    pub(super) logs: &'a Path,
    pub(super) budget: Budget,
    /// The seconds of each file in its last run.
    pub(super) times: &'a Times,
}

impl ParallelRun<'_> {
    /// Runs all test files, and then the failed tests again, alone; the report contains all outcomes.
    pub(super) fn run(&self, binaries: &[Binary]) -> Result<Report> {
        println!("    this machine is {:.1} times as slow as a quiet one", machine::slowness());
        fs::create_dir_all(self.logs).with_context(|| format!("{}", self.logs.display()))?;
        let report = Mutex::new(Report::default());
        let is_quiet = |it: &Binary| QUIET.contains(&it.name.as_str());
        let (quiet, others): (Vec<_>, Vec<_>) = binaries.iter().partition(|it| is_quiet(it));
        self.side_by_side(arranged(others, self.times), self.count, &report)?;
        self.side_by_side(arranged(quiet, self.times), self.count.min(QUIET_LANES), &report)?;
        self.retry(binaries, &report)?;
        Ok(report.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn side_by_side(
        &self,
        binaries: Vec<&Binary>,
        lanes: usize,
        report: &Mutex<Report>,
    ) -> Result<()> {
        let waiting = Mutex::new(VecDeque::from(binaries));
        let lane = |number: usize| -> Result<()> {
            while let Some(binary) = next(&waiting, number == 0) {
                self.file(binary, report)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let lane = &lane;
            let all: Vec<_> = (0..lanes).map(|number| scope.spawn(move || lane(number))).collect();
            let mut ends = all.into_iter().map(|lane| lane.join().expect("a lane does not panic"));
            ends.try_for_each(|end| end)
        })
    }

    /// Runs a test file. If it was killed, it runs again without the tests that have had their turn.
    fn file(&self, binary: &Binary, report: &Mutex<Report>) -> Result<()> {
        let name = &binary.name;
        if !self.budget.has_time(budget::expected(self.times, name), machine::slowness()) {
            println!("\n  {name}: not run, out of time");
            locked(report).not_run.push(name.clone());
            return Ok(());
        }
        let (mut had_turn, mut taken) = (BTreeSet::new(), Timed::new(name));
        for round in 0_u32.. {
            let run = self.attempt(binary, others(&had_turn), &format!("{name}.{round}"))?;
            taken.add(&run);
            locked(report).add(name, &run);
            // A program that ignores --skip would run for ever.
            let are_new = run.cases.iter().all(|it| had_turn.insert(it.name.clone()));
            if run.is_whole || run.is_out_of_time || !are_new {
                break;
            }
        }
        locked(report).files.push(taken);
        Ok(())
    }

    /// Runs each failed test once more, one after another.
    fn retry(&self, binaries: &[Binary], report: &Mutex<Report>) -> Result<()> {
        let failures = std::mem::take(&mut locked(report).failures);
        for failure in failures {
            let binary = binaries.iter().find(|it| it.name == failure.file);
            let expected = failure.case.seconds.max(1.0);
            let Some(binary) = binary.filter(|_| self.budget.has_time(expected, 1.0)) else {
                locked(report).failures.push(failure);
                continue;
            };
            let Failure { file, case, .. } = &failure;
            println!("\n  {file}::{} failed: running it once more, alone", case.name);
            let name = format!("{file}.{}.retry", case.name.replace("::", "."));
            let run = self.attempt(binary, selection(case), &name)?;
            let passes = run.cases.iter().filter(|it| it.outcome == Outcome::Passed).count();
            let is_green = run.is_whole && passes > 0 && passes == run.cases.len();
            locked(report).retried(failure, is_green, run.log);
        }
        Ok(())
    }

    fn attempt(&self, binary: &Binary, selection: Vec<String>, log: &str) -> Result<Run> {
        let name = &binary.name;
        let attempt = Attempt {
            binary,
            selection,
            threads: self.threads.unwrap_or_else(|| suitable_threads(name)),
            log: self.logs.join(format!("{log}.log")),
            end: self.budget.end(),
            sweeper: binaries::sibling(binary, "lb-test-peer"),
        };
        let run = attempt.run()?;
        let Run { log, seconds, cpu, text, .. } = &run;
        // The lines are printed in one call, because other lanes print as well.
        let log = log.display();
        print!("\n  {name} ({seconds:.1} s, CPU {cpu:.1} s, {log})\n{text}");
        Ok(run)
    }
}

/// Arguments that select all tests but these.
fn others(had_turn: &BTreeSet<String>) -> Vec<String> {
    if had_turn.is_empty() {
        return Vec::new();
    }
    let skipped = had_turn.iter().flat_map(|name| ["--skip".to_owned(), name.clone()]);
    iter::once("--exact".to_owned()).chain(skipped).collect()
}

/// Arguments that select one case.
fn selection(case: &Case) -> Vec<String> {
    if case.name == PROGRAM {
        return Vec::new();
    }
    vec!["--exact".to_owned(), case.name.clone()]
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Control planes first, the longest first, and then all others, the longest last: lanes take files from both ends.
fn arranged<'a>(mut binaries: Vec<&'a Binary>, times: &Times) -> Vec<&'a Binary> {
    binaries.sort_by(|one, other| {
        let [one, other] = [one, other].map(|it| {
            let seconds = budget::expected(times, &it.name);
            if it.name.starts_with(CONTROL_PLANE) { (0, -seconds) } else { (1, seconds) }
        });
        one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
    });
    binaries
}

fn next<'a>(waiting: &Mutex<VecDeque<&'a Binary>>, is_first: bool) -> Option<&'a Binary> {
    let mut waiting = locked(waiting);
    if is_first { waiting.pop_front() } else { waiting.pop_back() }
}

fn suitable_threads(name: &str) -> &'static str {
    WAITING.iter().find(|(file, _)| *file == name).map_or("1", |(_, threads)| threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_take_the_longest_from_both_ends() {
        let seconds = [
            ("topology_a", 9.0),
            ("control_plane_a", 5.0),
            ("topology_b", 70.0),
            ("control_plane_b", 90.0),
        ];
        let all = seconds.map(|(name, _)| Binary {
            name: name.to_owned(),
            program: "".into(),
            directory: "/".into(),
        });
        let times = seconds.map(|(name, seconds)| (name.to_owned(), seconds)).into();
        let waiting = Mutex::new(arranged(all.iter().collect(), &times).into());
        let order = [true, false, true, false, false];
        let taken = order.map(|first| next(&waiting, first).map(|it| it.name.as_str()));
        let expected = ["control_plane_b", "topology_b", "control_plane_a", "topology_a"].map(Some);
        assert_eq!((&taken[..4], taken[4]), (&expected[..], None));
    }

    #[test]
    fn files_that_wait_run_several_tests_at_once() {
        let files = ["topology_capacity", "topology_restart_under_load"];
        assert_eq!(files.map(suitable_threads), ["4", "1"]);
    }
}
