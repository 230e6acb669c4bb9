//! Watches the file of `--config`: when it changes, the agent restarts in the same process. Packets do not notice, as
//! with any restart.
//!
//! An invalid file changes nothing, and is reported. kube-proxy exits in both cases.

use std::path::Path;
use std::time::Duration;

use tokio::fs::read_to_string;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::cli;
use crate::config::Config;

/// A `ConfigMap` takes a minute to become a file; reading one takes no time.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns when the file holds another text that is a configuration. Without a file never.
pub(super) async fn changed(options: &cli::Run) {
    let Some(file) = options.config_file() else { return std::future::pending().await };
    let mut known = text(file).await;
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
        known = Some(now);
    }
}

/// A file that is not there for a moment has not changed.
async fn text(file: &Path) -> Option<String> {
    read_to_string(file).await.ok()
}
