//! Programs of tests side by side: each has its output in a file of its own, which is shown whole at its end.
//!
//! The first lane takes them from the front of the list, all others from its back: those whose names begin alike
//! (control planes, the heaviest) so never meet. Some run by themselves when all others are done.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::binaries::Binary;
use super::limit;
use crate::workspace;

/// The longest that a file of tests may take. Beside others on two slow CPUs the longest of them takes five minutes.
const LONGEST: Duration = Duration::from_mins(15);

/// Files whose tests mostly wait for a clock (a token that is read again, pauses between refusals, flows that are swept),
/// and how many of their tests run at once.
const WAITING: [(&str, &str); 4] = [
    ("control_plane_odd_server", "2"),
    ("control_plane_role", "2"),
    ("control_plane_watch", "2"),
    ("topology_capacity", "4"),
];

/// Files that count every lost packet, or every second until a change is seen: they run one by one, after the others, for
/// on two busy CPUs they would measure the machine.
const ALONE: [&str; 3] =
    ["control_plane_contract", "control_plane_odd_server", "topology_restart_under_load"];

/// Runs all, `lanes` of them at a time with `threads` tests at once in each, or as many as suit the file; an error names
/// those that failed.
pub(crate) fn run(binaries: Vec<Binary>, lanes: usize, threads: Option<&str>) -> Result<()> {
    let logs = workspace::target().join("test-logs");
    fs::create_dir_all(&logs).with_context(|| format!("directory {}", logs.display()))?;
    let count = binaries.len();
    let (alone, others) = binaries.into_iter().partition(|it| ALONE.contains(&it.name.as_str()));
    let mut failed = side_by_side(others, lanes, (&logs, threads))?;
    failed.extend(side_by_side(alone, 1, (&logs, threads))?);
    if failed.is_empty() {
        return Ok(());
    }
    bail!(
        "{} of {count} files of tests failed: {}\n\
         remedy: read the failure above; `cargo xtask test --test NAME` runs one file of tests",
        failed.len(),
        failed.join(", ")
    );
}

/// Runs some, `lanes` of them at a time; returns the names of those that failed.
fn side_by_side(
    binaries: Vec<Binary>,
    lanes: usize,
    (logs, threads): (&Path, Option<&str>),
) -> Result<Vec<String>> {
    let waiting = Mutex::new(VecDeque::from(binaries));
    let lane = |number: usize| -> Result<Vec<String>> {
        let mut failed = Vec::new();
        while let Some(binary) = next(&waiting, number == 0) {
            if !passes(&binary, logs, threads)? {
                failed.push(binary.name);
            }
        }
        Ok(failed)
    };
    let failed = thread::scope(|scope| {
        let lane = &lane;
        let lanes: Vec<_> = (0..lanes).map(|number| scope.spawn(move || lane(number))).collect();
        let ends = lanes.into_iter().map(|lane| lane.join().expect("a lane does not panic"));
        ends.collect::<Result<Vec<_>>>()
    })?;
    Ok(failed.concat())
}

fn next(waiting: &Mutex<VecDeque<Binary>>, is_first: bool) -> Option<Binary> {
    let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
    if is_first { waiting.pop_front() } else { waiting.pop_back() }
}

fn suitable_threads(name: &str) -> &'static str {
    WAITING.iter().find(|(file, _)| *file == name).map_or("1", |(_, threads)| threads)
}

/// Runs one to its end and shows what it said.
fn passes(binary: &Binary, logs: &Path, threads: Option<&str>) -> Result<bool> {
    let Binary { name, program, directory } = binary;
    let log = logs.join(format!("{name}.log"));
    let said = File::create(&log).with_context(|| format!("file {}", log.display()))?;
    let (start, complaints) = (Instant::now(), said.try_clone()?);
    let mut command = Command::new(program);
    command
        .current_dir(directory)
        .env("RUST_TEST_THREADS", threads.unwrap_or_else(|| suitable_threads(name)))
        .stdin(Stdio::null())
        .stdout(said)
        .stderr(complaints);
    let mut child = command.spawn().with_context(|| format!("tests {}", program.display()))?;
    let (status, late) = limit::wait(&mut child, LONGEST)?;
    let text = fs::read(&log).with_context(|| format!("file {}", log.display()))?;
    let seconds = start.elapsed().as_secs_f64();
    let late = late.map(|late| format!("{name}: {late}")).unwrap_or_default();
    let end = if status.success() { late } else { format!("{late}{name} ended with {status}\n") };
    let (program, text) = (program.display(), String::from_utf8_lossy(&text));
    // In one piece: another lane may want to say something, too.
    print!("\n  {name} ({seconds:.1} s, {program})\n{text}{end}");
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(name: &str, program: &str) -> Binary {
        Binary { name: name.to_owned(), program: program.into(), directory: "/".into() }
    }

    #[test]
    fn lanes_take_from_both_ends() {
        let all = ["control_plane_a", "control_plane_b", "topology_a"].map(|name| binary(name, ""));
        let waiting = Mutex::new(VecDeque::from(all));
        let taken = [true, false, true, false].map(|first| next(&waiting, first).map(|it| it.name));
        let expected = [Some("control_plane_a"), Some("topology_a"), Some("control_plane_b"), None];
        assert_eq!(taken.each_ref().map(Option::as_deref), expected);
    }

    #[test]
    fn files_that_wait_run_several_tests_at_once() {
        assert_eq!(
            ["topology_capacity", "topology_restart_under_load"].map(suitable_threads),
            ["4", "1"]
        );
    }

    #[test]
    fn those_that_fail_are_named_and_the_others_run() {
        let all = vec![binary("good", "/bin/true"), binary("bad", "/bin/false")];
        let error = run(all, 2, None).unwrap_err().to_string();
        assert!(error.starts_with("1 of 2 files of tests failed: bad\n"), "{error}");
        assert!(workspace::target().join("test-logs/good.log").is_file());
    }

    #[test]
    fn program_that_is_not_there_is_named() {
        let error = run(vec![binary("gone", "/nowhere/gone")], 1, None).unwrap_err();
        assert_eq!(error.to_string(), "tests /nowhere/gone");
    }
}
