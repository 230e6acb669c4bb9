//! Another configuration in the file of `--config`: the agent ends and begins anew under it, in the same process.
//! Packets do not notice, as with any restart.
//!
//! A file that cannot be used changes nothing, and is named. kube-proxy ends in both cases and leaves the rest to others.

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
                info!(file = %file.display(), "another configuration: beginning anew");
                return;
            }
            Err(error) => {
                let error = crate::chain(&error);
                warn!(file = %file.display(), error, "another configuration cannot be used");
            }
        }
        known = Some(now);
    }
}

/// A file that is not there for a moment has not changed.
async fn text(file: &Path) -> Option<String> {
    read_to_string(file).await.ok()
}
