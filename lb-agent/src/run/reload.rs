//! Watches the file of `--config`. When it changes, the agent restarts in the same process; packets are not affected,
//! as with any restart.
//!
//! An invalid file, or one without a document, is reported and has no effect. kube-proxy exits in all these cases.

use std::path::Path;
use std::time::Duration;

use tokio::fs::read_to_string;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::config::Config;
use crate::config::flags::Run;

/// Interval between readings. A `ConfigMap` takes a minute to reach the file; reading it is cheap.
const PAUSE: Duration = Duration::from_secs(1);

/// Waits until the file contains another valid configuration than `read`, and returns its text. Never returns without a
/// file.
///
/// `read` is the text that was read before the programs were verified, which takes seconds: a change meanwhile must not
/// be missed.
pub(super) async fn changed(options: &Run, read: Option<&str>) -> String {
    let Some(file) = options.config_file() else { return std::future::pending().await };
    let mut seen = Seen { current: read, ..Seen::default() };
    loop {
        sleep(PAUSE).await;
        let Some(text) = text(file).await else {
            seen.last = None;
            continue;
        };
        if !seen.is_due(&text) {
            continue;
        }
        match check(options, &text) {
            Ok(()) => {
                info!(file = %file.display(), "configuration changed; restarting");
                return text;
            }
            Err(error) => {
                warn!(file = %file.display(), error, "changed configuration is invalid; keeping the current one");
            }
        }
        seen.refused = Some(text);
    }
}

/// The texts of the file so far.
#[derive(Default)]
struct Seen<'a> {
    /// The text that the agent runs with.
    current: Option<&'a str>,
    /// The text of the last reading.
    last: Option<String>,
    /// The invalid text that was reported last. A file that stays invalid is reported once.
    refused: Option<String>,
}

impl Seen<'_> {
    /// Takes in a reading. Reports whether its text must be checked.
    fn is_due(&mut self, text: &str) -> bool {
        // An editor truncates a file before it writes, and a long write takes several calls. Half of a file is often
        // valid, so a text counts only if it has not changed since the last reading.
        let is_settled = self.last.as_deref() == Some(text);
        if !is_settled {
            self.last = Some(text.to_owned());
        }
        is_settled && self.current != Some(text) && self.refused.as_deref() != Some(text)
    }
}

/// Checks a changed text. An empty one would be valid at a first start, where kube-proxy accepts it; as a change it is
/// more probably a mistake.
fn check(options: &Run, text: &str) -> Result<(), String> {
    let config = Config::of(options, Some(text)).map_err(|error| crate::chain(&error))?;
    if config.documents > 0 { Ok(()) } else { Err("it contains no document".into()) }
}

/// Reads the file. A file that does not exist for a moment counts as unchanged.
async fn text(file: &Path) -> Option<String> {
    read_to_string(file).await.ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser as _;
    use tokio::time::timeout;

    use super::*;
    use crate::cli::{Cli, Command};

    fn document(lines: &str) -> String {
        format!("apiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\n{lines}\n")
    }

    fn options(file: &Path) -> Run {
        let arguments = ["lb-agent", "run", "--config", file.to_str().unwrap()];
        let command = Cli::try_parse_from(arguments).unwrap().command;
        let Command::Run(start) = command else { panic!("{command:?}") };
        start.run
    }

    /// The file is replaced before its first check.
    #[tokio::test]
    async fn change_since_the_file_was_read_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("agent.yaml");
        let (read, other) = (document("masquerade: edge"), document("masquerade: kube-proxy"));
        fs::write(&file, &other).unwrap();
        let options = options(&file);
        let seen = timeout(Duration::from_mins(1), changed(&options, Some(&read))).await;
        assert_eq!(seen.expect("the change was missed"), other);
    }

    #[test]
    fn text_counts_when_two_readings_in_a_row_have_it() {
        let mut seen = Seen { current: Some("a"), ..Seen::default() };
        let due = |text| seen.is_due(text);
        assert_eq!(["a", "", "ab", "abc", "a", "a"].map(due), [false; 6]);
        let due = |text| seen.is_due(text);
        assert_eq!(["abc", "abc"].map(due), [false, true]);
        seen.refused = Some("abc".into());
        assert_eq!(["abc", "abc"].map(|text| seen.is_due(text)), [false; 2], "reported once");
    }

    #[test]
    fn text_without_a_document_changes_nothing() {
        let options = options(Path::new("agent.yaml"));
        for text in ["", "\n", "---\n", "---\n---\n", "# kind: AgentConfiguration\n"] {
            assert!(check(&options, text).is_err(), "{text:?}");
            // At a first start kube-proxy accepts such a file.
            assert!(Config::of(&options, Some(text)).is_ok(), "{text:?}");
        }
        assert!(check(&options, &document("masquerade: edge")).is_ok());
        let error = check(&options, &document("masquerade: never")).unwrap_err();
        assert!(error.contains("line 3"), "{error}");
    }
}
