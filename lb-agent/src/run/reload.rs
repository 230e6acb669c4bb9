//! Watches the file of `--config`. When it changes, the agent restarts in the same process; packets are not affected,
//! as with any restart.
//!
//! An invalid file is reported and has no effect. kube-proxy exits in both cases.

use std::path::Path;
use std::time::Duration;

use tokio::fs::read_to_string;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::config::Config;
use crate::config::flags::Run;

/// Interval between readings. A `ConfigMap` takes a minute to reach the file; reading it is cheap.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns when the file contains another valid configuration than `read`. Never returns without a file.
///
/// `read` is the text that was read before the programs were verified, which takes seconds: a change meanwhile must not
/// be missed.
pub(super) async fn changed(options: &Run, read: Option<&str>) {
    let Some(file) = options.config_file() else { return std::future::pending().await };
    let mut known = read.map(str::to_owned);
    loop {
        sleep(PAUSE).await;
        let Some(now) = text(file).await else { continue };
        if known.as_deref() == Some(now.as_str()) {
            continue;
        }
        match Config::of(options, Some(&now)) {
            Ok(_) => {
                info!(file = %file.display(), "configuration changed; restarting");
                return;
            }
            Err(error) => {
                let error = crate::chain(&error);
                warn!(file = %file.display(), error, "changed configuration is invalid; keeping the current one");
            }
        }
        // A file that stays invalid is reported once.
        known = Some(now);
    }
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

    /// The file is replaced before its first check.
    #[tokio::test]
    async fn change_since_the_file_was_read_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("agent.yaml");
        let arguments = ["lb-agent", "run", "--config", file.to_str().unwrap()];
        let command = Cli::try_parse_from(arguments).unwrap().command;
        let Command::Run(start) = command else { panic!("{command:?}") };
        fs::write(&file, document("masquerade: kube-proxy")).unwrap();
        let read = document("masquerade: edge");
        let seen = timeout(Duration::from_mins(1), changed(&start.run, Some(&read))).await;
        assert!(seen.is_ok(), "the change was missed");
    }
}
