//! Tests of the runner with test programs that hang, fail once, fail twice, or run out of time: each with the line that
//! the runner prints.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::attempt::{Attempt, Run};
use super::binaries::Binary;
use super::budget::{Budget, Times};
use super::events::Outcome;
use super::parallel::ParallelRun;
use super::report::Report;

/// Shell functions that print events as libtest does.
const LIBTEST: &str = r#"#!/bin/sh
began() { printf '{ "type": "test", "event": "started", "name": "%s" }\n' "$1"; }
ended() { printf '{ "type": "test", "name": "%s", "event": "%s", "exec_time": 0.1 }\n' "$1" "$2"; }
skipped() { case " $arguments " in *" --skip $1 "*) return 0;; *) return 1;; esac; }
arguments="$*"
"#;

/// A test program written in shell.
fn program(directory: &TempDir, name: &str, body: &str) -> Binary {
    let program = directory.path().join(name);
    fs::write(&program, format!("{LIBTEST}{body}")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    Binary { name: name.to_owned(), program, directory: directory.path().to_owned() }
}

fn run_in_parallel(
    binaries: &[Binary],
    directory: &TempDir,
    times: &Times,
    budget: Budget,
) -> Report {
    let run = ParallelRun { count: 2, threads: None, logs: directory.path(), budget, times };
    run.run(binaries).unwrap()
}

fn text(report: &Report) -> String {
    report.text(Duration::from_mins(1))
}

/// Runs a program whose limit is two seconds in the table, as for every test of [`HANGING`].
fn attempt(binary: &Binary, log: &Path) -> Run {
    let attempt = Attempt {
        binary,
        selection: Vec::new(),
        threads: "1",
        log: log.to_owned(),
        end: None,
        sweeper: "/bin/true".into(),
    };
    attempt.run().unwrap()
}

/// A program whose second test never ends, and neither does a child that holds its output open.
const HANG: &str = r"
if ! skipped first; then began first; ended first ok; fi
if ! skipped second; then began second; sleep 600 & sleep 600; fi
began third; ended third ok
";

#[test]
fn test_that_hangs_is_ended_with_its_child_and_the_others_have_their_turn() {
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let all = [program(&directory, super::limit::HANGING, HANG)];
    let report = run_in_parallel(&all, &directory, &Times::new(), Budget::new(None));
    assert!(began.elapsed() < Duration::from_mins(5));
    let text = text(&report);
    assert!(text.contains("FAILED hanging_example::second, killed: logs "), "{text}");
    assert!(text.ends_with("\n2 passed, 1 failed\n"), "{text}");
    let output = &report.failures.first().unwrap().case.output;
    assert!(output.contains(": sleep 600 \n"), "{output}");
}

#[test]
fn test_that_fails_once_is_flaky_and_the_run_is_green() {
    let directory = tempfile::tempdir().unwrap();
    let body = "began one\nif [ -e again ]; then ended one ok; else touch again; ended one failed; exit 101; fi\n";
    let report = run_in_parallel(
        &[program(&directory, "once", body)],
        &directory,
        &Times::new(),
        Budget::new(None),
    );
    let text = text(&report);
    let logs = ["once.0.log", "once.one.retry.log"].map(|it| directory.path().join(it));
    let [first, second] = logs.each_ref().map(|log| log.display());
    assert!(text.contains(&format!("FLAKY once::one: logs {first} and {second}\n")), "{text}");
    assert!(text.ends_with("\n1 passed, 0 failed\n"), "{text}");
    assert!(report.is_green());
}

#[test]
fn test_that_fails_twice_is_red() {
    let directory = tempfile::tempdir().unwrap();
    let body = "began one; ended one failed; exit 101\n";
    let report = run_in_parallel(
        &[program(&directory, "twice", body)],
        &directory,
        &Times::new(),
        Budget::new(None),
    );
    let text = text(&report);
    assert!(text.contains("FAILED twice::one: logs "), "{text}");
    assert!(text.ends_with("\n0 passed, 1 failed\n"), "{text}");
    assert!(!report.is_green());
}

#[test]
fn file_without_room_in_the_budget_is_named_and_makes_the_run_red() {
    let directory = tempfile::tempdir().unwrap();
    let all = [
        program(&directory, "long", "began one; ended one ok\n"),
        program(&directory, "short", "began one; ended one ok\n"),
    ];
    let times = Times::from([("long".to_owned(), 7200.0), ("short".to_owned(), 0.1)]);
    let report =
        run_in_parallel(&all, &directory, &times, Budget::new(Some(Duration::from_mins(10))));
    let text = text(&report);
    assert!(text.contains("NOT RUN long: out of time\n"), "{text}");
    assert!(text.ends_with("1 files not run, 1.0 minutes\n1 passed, 0 failed\n"), "{text}");
    assert!(!report.is_green());
}

#[test]
fn file_that_runs_when_the_time_is_over_is_ended_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let all = [program(&directory, "long", "began one; sleep 600; ended one ok\n")];
    let times = Times::from([("long".to_owned(), 0.0)]);
    let report =
        run_in_parallel(&all, &directory, &times, Budget::new(Some(Duration::from_secs(1))));
    let text = text(&report);
    assert!(text.contains("NOT RUN long: out of time\n"), "{text}");
    assert!(!report.is_green());
}

#[test]
fn test_that_the_kernel_has_nothing_for_is_counted_as_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let body = "began one; echo skipped: no such kind; ended one ok\nbegan two; ended two ok\n\
                began three; echo skipped: no such kind; ended three failed\n";
    let binary = program(&directory, "kinds", body);
    let run = attempt(&binary, &directory.path().join("log"));
    let outcomes: Vec<Outcome> = run.cases.iter().map(|case| case.outcome).collect();
    assert_eq!(outcomes, [Outcome::Ignored, Outcome::Passed, Outcome::Failed]);
    assert!(run.text.contains("skipped: no such kind\ntest one ... ignored"), "{}", run.text);
}

#[test]
fn program_that_dies_in_a_test_is_a_failure_of_that_test() {
    let directory = tempfile::tempdir().unwrap();
    let body = "if ! skipped one; then began one; kill -9 $$; fi\nbegan two; ended two ok\n";
    let binary = program(&directory, "dies", body);
    let run = attempt(&binary, &directory.path().join("log"));
    let case = run.cases.first().unwrap();
    assert_eq!((case.name.as_str(), case.outcome, run.is_whole), ("one", Outcome::Failed, false));
    let report = run_in_parallel(&[binary], &directory, &Times::new(), Budget::new(None));
    assert!(text(&report).ends_with("\n1 passed, 1 failed\n"), "{}", text(&report));
}

#[test]
fn program_that_fails_outside_of_its_tests_is_not_taken_for_green() {
    let directory = tempfile::tempdir().unwrap();
    let binary = program(&directory, "broken", "echo no such thing >&2; exit 3\n");
    let report = run_in_parallel(&[binary], &directory, &Times::new(), Budget::new(None));
    assert!(text(&report).contains("FAILED broken::(program): logs "), "{}", text(&report));
}

#[test]
fn program_that_is_not_there_is_named() {
    let binary =
        Binary { name: "gone".into(), program: "/nowhere/gone".into(), directory: "/".into() };
    let directory = tempfile::tempdir().unwrap();
    let (logs, times) = (directory.path(), Times::new());
    let run =
        ParallelRun { count: 1, threads: None, logs, budget: Budget::new(None), times: &times };
    assert_eq!(run.run(&[binary]).unwrap_err().to_string(), "tests /nowhere/gone");
}

#[test]
fn a_selection_names_files_of_tests() {
    let files = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        super::files(&words).join(" ")
    };
    assert_eq!(files(&["--test", "a", "--test=b", "--", "--test", "c"]), "a b");
    assert_eq!(files(&["-p", "lb-common", "forward::"]), "");
}
