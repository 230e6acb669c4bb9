//! The last lines of a run: the number of passed tests, the failed ones, and the slowest files.

use std::path::PathBuf;
use std::time::Duration;

use super::attempt::Run;
use super::budget::Times;
use super::events::{Case, Outcome};

/// The number of the slowest files to show.
const SLOWEST: usize = 10;

/// A test that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) file: String,
    pub(super) case: Case,
    /// The logs of the run in which it failed, and of its second run.
    pub(super) logs: Vec<PathBuf>,
}

/// The times of a test file.
#[derive(Debug)]
pub(super) struct Timed {
    pub(super) name: String,
    pub(super) seconds: f64,
    pub(super) cpu: f64,
    slowest: Option<(String, f64)>,
}

/// The outcomes of a whole run.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Passed and ignored cases, by file.
    pub(super) good: Vec<(String, Case)>,
    pub(super) failures: Vec<Failure>,
    pub(super) flaky: Vec<Failure>,
    /// Test files that did not run because the time was too short.
    pub(super) not_run: Vec<String>,
    pub(super) files: Vec<Timed>,
    /// The numbers of passed and failed tests without root.
    pub(super) without_root: (usize, usize),
}

impl Timed {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), seconds: 0.0, cpu: 0.0, slowest: None }
    }

    /// Adds a run of the file.
    pub(super) fn add(&mut self, run: &Run) {
        self.seconds += run.seconds;
        self.cpu += run.cpu;
        let all = run.cases.iter().map(|case| (case.name.clone(), case.seconds));
        let all = all.chain(self.slowest.take());
        self.slowest = all.max_by(|left, right| left.1.total_cmp(&right.1));
    }
}

impl Report {
    /// Adds the outcomes of a run of a file.
    pub(super) fn add(&mut self, file: &str, run: &Run) {
        if run.is_out_of_time {
            self.not_run.push(file.to_owned());
        }
        for case in run.cases.iter().cloned() {
            match case.outcome {
                Outcome::Passed | Outcome::Ignored => self.good.push((file.to_owned(), case)),
                Outcome::Failed | Outcome::Late => self.failures.push(Failure {
                    file: file.to_owned(),
                    case,
                    logs: vec![run.log.clone()],
                }),
            }
        }
    }

    /// Records the second run of a failed test.
    pub(super) fn retried(&mut self, mut failure: Failure, is_green: bool, log: PathBuf) {
        failure.logs.push(log);
        if is_green {
            self.flaky.push(failure);
        } else {
            self.failures.push(failure);
        }
    }

    /// Whether the run is green: flaky tests are named, but do not make it red.
    pub(super) const fn is_green(&self) -> bool {
        self.failures.is_empty() && self.not_run.is_empty() && self.without_root.1 == 0
    }

    /// The seconds of each file that ran to its end.
    pub(super) fn times(&self) -> Times {
        let whole = self.files.iter().filter(|it| !self.not_run.contains(&it.name));
        whole.map(|it| (it.name.clone(), it.seconds)).collect()
    }

    /// The last lines of the output.
    pub(super) fn text(&self, spent: Duration) -> String {
        let mut lines = vec!["slowest files of tests with root:".to_owned()];
        let mut files: Vec<&Timed> = self.files.iter().collect();
        files.sort_by(|left, right| right.seconds.total_cmp(&left.seconds));
        for it in files.into_iter().take(SLOWEST) {
            let Timed { name, seconds, cpu, slowest } = it;
            let slowest = slowest.as_ref().map(|(name, seconds)| format!("{name} {seconds:.1} s"));
            let slowest = slowest.unwrap_or_default();
            lines.push(format!("  {seconds:6.1} s, CPU {cpu:6.1} s  {name} (longest: {slowest})"));
        }
        for (word, failures) in [("FLAKY", &self.flaky), ("FAILED", &self.failures)] {
            for Failure { file, case, logs } in failures {
                let late = if case.outcome == Outcome::Late { ", killed" } else { "" };
                let logs: Vec<String> = logs.iter().map(|it| it.display().to_string()).collect();
                let logs = logs.join(" and ");
                lines.push(format!("{word} {file}::{}{late}: logs {logs}", case.name));
            }
        }
        if !self.flaky.is_empty() {
            lines.push("remedy: fix it, or name it with its cause in docs/flaky.md".to_owned());
        }
        for name in &self.not_run {
            lines.push(format!("NOT RUN {name}: out of time"));
        }
        let (passed, failed) = self.numbers();
        let (flaky, not_run) = (self.flaky.len(), self.not_run.len());
        let ignored = self.good.iter().filter(|(_, it)| it.outcome == Outcome::Ignored).count();
        let minutes = spent.as_secs_f64() / 60.0;
        lines.push(format!(
            "{flaky} flaky, {ignored} ignored, {not_run} files not run, {minutes:.1} minutes"
        ));
        lines.push(format!("{passed} passed, {failed} failed\n"));
        lines.join("\n")
    }

    /// The numbers of tests that passed, including flaky ones, and of tests that failed.
    pub(super) fn numbers(&self) -> (usize, usize) {
        let passed = self.good.iter().filter(|(_, it)| it.outcome == Outcome::Passed).count();
        let (good, bad) = self.without_root;
        (passed + self.flaky.len() + good, self.failures.len() + bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(name: &str, outcome: Outcome, seconds: f64) -> Case {
        Case { name: name.to_owned(), outcome, seconds, output: String::new() }
    }

    fn run() -> Run {
        Run {
            log: "/l/file.0.log".into(),
            cases: vec![
                case("good", Outcome::Passed, 3.0),
                case("late", Outcome::Late, 120.0),
                case("bad", Outcome::Failed, 1.0),
            ],
            text: String::new(),
            seconds: 124.0,
            cpu: 2.0,
            is_whole: true,
            is_out_of_time: false,
        }
    }

    #[test]
    fn last_lines_name_failed_flaky_and_missing_tests() {
        let mut report = Report { without_root: (5, 0), ..Report::default() };
        report.add("file", &run());
        let mut timed = Timed::new("file");
        timed.add(&run());
        report.files.push(timed);
        let failures = std::mem::take(&mut report.failures);
        for (failure, is_green) in failures.into_iter().zip([true, false]) {
            report.retried(failure, is_green, "/l/retry.log".into());
        }
        report.not_run.push("other".to_owned());
        assert!(!report.is_green());
        assert_eq!(
            report.text(Duration::from_secs(90)),
            "slowest files of tests with root:\n\
             \u{20}  124.0 s, CPU    2.0 s  file (longest: late 120.0 s)\n\
             FLAKY file::late, killed: logs /l/file.0.log and /l/retry.log\n\
             FAILED file::bad: logs /l/file.0.log and /l/retry.log\n\
             remedy: fix it, or name it with its cause in docs/flaky.md\n\
             NOT RUN other: out of time\n\
             1 flaky, 0 ignored, 1 files not run, 1.5 minutes\n\
             7 passed, 1 failed\n"
        );
        assert_eq!(report.times().get("file"), Some(&124.0));
    }
}
