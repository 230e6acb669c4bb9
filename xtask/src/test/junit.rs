//! The report of a run in `JUnit`'s format, `target/junit.xml`: tests with root and those of cargo-nextest.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use quick_junit::{NonSuccessKind, Report as Document, TestCase, TestCaseStatus, TestSuite};

use super::events::{Case, Outcome};
use super::report::Report;

/// Writes the report, including the one of cargo-nextest at `nextest`, and returns its path.
pub(super) fn write(report: &Report, nextest: &Path, target: &Path) -> Result<PathBuf> {
    let mut document = Document::new("lb-agent");
    for suite in suites(report) {
        document.add_test_suite(suite);
    }
    document.add_test_suites(read(nextest).map(|it| it.test_suites).unwrap_or_default());
    let file = target.join("junit.xml");
    let text = document.to_string().context("JUnit report")?;
    fs::write(&file, text).with_context(|| format!("{}", file.display()))?;
    Ok(file)
}

/// The numbers of passed and failed tests in a report of cargo-nextest; `None` if there is no report.
pub(super) fn numbers(nextest: &Path) -> Option<(usize, usize)> {
    let document = read(nextest)?;
    let failed = document.failures + document.errors;
    Some((document.tests - failed, failed))
}

fn read(nextest: &Path) -> Option<Document> {
    Document::deserialize_from_str(&fs::read_to_string(nextest).ok()?).ok()
}

/// One test suite for each test file.
fn suites(report: &Report) -> Vec<TestSuite> {
    let mut suites = std::collections::BTreeMap::<&str, TestSuite>::new();
    let good = report.good.iter().map(|(file, case)| (file, case, true));
    let flaky = report.flaky.iter().map(|it| (&it.file, &it.case, true));
    let failed = report.failures.iter().map(|it| (&it.file, &it.case, false));
    for (file, case, is_green) in good.chain(flaky).chain(failed) {
        let suite = suites.entry(file).or_insert_with(|| TestSuite::new(file.as_str()));
        suite.add_test_case(test_case(case, is_green));
    }
    suites.into_values().collect()
}

fn test_case(case: &Case, is_green: bool) -> TestCase {
    let status = match (case.outcome, is_green) {
        (Outcome::Ignored, _) => TestCaseStatus::skipped(),
        (_, true) => TestCaseStatus::success(),
        (Outcome::Late, false) => TestCaseStatus::non_success(NonSuccessKind::Error),
        (_, false) => TestCaseStatus::non_success(NonSuccessKind::Failure),
    };
    let mut found = TestCase::new(case.name.as_str(), status);
    found.set_time(Duration::try_from_secs_f64(case.seconds).unwrap_or_default());
    if !case.output.is_empty() {
        found.set_system_out(case.output.as_str());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_is_read_as_it_was_written() {
        let case = |name: &str, outcome| Case {
            name: name.to_owned(),
            outcome,
            seconds: 1.5,
            output: "said".to_owned(),
        };
        let mut report = Report::default();
        report.good.push(("file".to_owned(), case("good", Outcome::Passed)));
        let failure = super::super::report::Failure {
            file: "file".to_owned(),
            case: case("bad", Outcome::Late),
            logs: Vec::new(),
        };
        report.failures.push(failure);
        let directory = tempfile::tempdir().unwrap();
        let nothing = directory.path().join("none.xml");
        let file = write(&report, &nothing, directory.path()).unwrap();
        assert_eq!(numbers(&file), Some((1, 1)));
        assert_eq!(numbers(&nothing), None);
    }
}
