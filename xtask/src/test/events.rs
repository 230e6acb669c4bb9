//! The events of libtest (`--format json`): the tests of a process that have begun, and how they ended.
//!
//! A log holds these lines among the output of tests and their children; a line that is not an event is kept for
//! people.

use serde::Deserialize;

/// The arguments that make a test program report events. They need `RUSTC_BOOTSTRAP=1`.
pub(super) const ARGUMENTS: [&str; 4] = ["-Zunstable-options", "--format", "json", "--report-time"];

/// The outcome of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    Failed,
    Ignored,
    /// The test exceeded its limit and was killed.
    Late,
}

/// A test that has ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
    /// The output of a failed test; for a late one, the description of its processes.
    pub(super) output: String,
}

/// A line of a log.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    Begun(String),
    Ended(Case),
    /// An event that does not concern a single test.
    Other,
    /// Text for people.
    Text(String),
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "event")]
    state: Option<String>,
    name: Option<String>,
    exec_time: Option<f64>,
    stdout: Option<String>,
    message: Option<String>,
}

/// Parses a line. Text without a line end may precede an event.
pub(super) fn parse(line: &str) -> Vec<Line> {
    let found = line.match_indices("{ \"type\": ").find_map(|(start, _)| {
        let (text, event) = line.split_at_checked(start)?;
        Some((text, serde_json::from_str::<Event>(event).ok()?))
    });
    let Some((text, event)) = found else { return vec![Line::Text(line.to_owned())] };
    let mut lines = Vec::new();
    if !text.is_empty() {
        lines.push(Line::Text(text.to_owned()));
    }
    lines.push(read(event));
    lines
}

fn read(event: Event) -> Line {
    let (Some(name), "test") = (event.name, event.kind.as_str()) else { return Line::Other };
    let outcome = match event.state.as_deref() {
        Some("started") => return Line::Begun(name),
        Some("ok") => Outcome::Passed,
        Some("failed") => Outcome::Failed,
        Some("ignored") => Outcome::Ignored,
        // A message of libtest that a test takes more than a minute.
        _ => return Line::Other,
    };
    let output = [event.stdout, event.message].into_iter().flatten().collect();
    Line::Ended(Case { name, outcome, seconds: event.exec_time.unwrap_or_default(), output })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_and_text_are_distinguished() {
        let ended = Case {
            name: "a::b".to_owned(),
            outcome: Outcome::Failed,
            seconds: 1.5,
            output: "said\n".to_owned(),
        };
        for (line, expected) in [
            (r#"{ "type": "suite", "event": "started", "test_count": 2 }"#, vec![Line::Other]),
            (
                r#"{ "type": "test", "event": "started", "name": "a::b" }"#,
                vec![Line::Begun("a::b".to_owned())],
            ),
            (
                r#"half a line{ "type": "test", "name": "a::b", "event": "failed", "exec_time": 1.5, "stdout": "said\n" }"#,
                vec![Line::Text("half a line".to_owned()), Line::Ended(ended)],
            ),
            (r#"{ "type": "test", "event": "timeout", "name": "a::b" }"#, vec![Line::Other]),
            (
                r#"{ "type": of the person }"#,
                vec![Line::Text(r#"{ "type": of the person }"#.to_owned())],
            ),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
    }
}
