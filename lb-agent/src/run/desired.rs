//! Computes the desired state from the source once, for `lb diff`, with or without a running agent.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::error::Error;
use super::inputs::{start_source, tracker};
use crate::config::Config;
use crate::config::flags::Run;
use crate::metrics::kube_proxy::KubeProxy;
use crate::reconcile::Change;
use crate::snapshot::{Finding, ViewHealth};
use crate::state_file::StateFile;

/// Time limit for the objects to arrive.
const PATIENCE: Duration = Duration::from_secs(30);

/// The desired state, and faults of its source.
#[derive(Debug)]
pub struct DesiredState {
    /// The plans of all Services.
    pub changes: Vec<Change>,
    /// Faults of the source itself.
    pub problems: Vec<Finding>,
    /// Whether every part of the source could be read. If not, a running agent may still serve objects that it read
    /// earlier.
    pub is_whole: bool,
}

/// Reads the source once and returns what the agent of this node would program. Without `--hostname-override` the node
/// is that of the last run.
pub async fn desired_state(options: &Run, config: &Config) -> Result<DesiredState, Error> {
    let known = StateFile::read(&config.bpf_dir.value);
    let is_named = config.hostname.is_set() || known.node.is_empty();
    let node = if is_named { config.node() } else { known.node };
    let (sender, mut events) = mpsc::channel(4_096);
    let (view, metrics) = (ViewHealth::default(), KubeProxy::default());
    let manifests = options.manifests.as_deref();
    drop(start_source(manifests, config, &node, &view, &metrics, sender, None).await?);
    let mut tracker = tracker(config, &node);
    // Nothing is final before all lists are complete: a Service without its slices would look like one without
    // endpoints.
    let lists = async {
        while !tracker.is_synced() {
            let Some(event) = events.recv().await else { return };
            tracker.apply(event);
        }
    };
    timeout(PATIENCE, lists).await.map_err(|_elapsed| Error::NoLists(PATIENCE))?;
    let change = |(service, translated): (_, Option<crate::translate::Translated>)| Change {
        service,
        ports: translated.map(|translated| translated.ports).unwrap_or_default(),
    };
    let changes = tracker.take().into_iter().map(change).collect();
    Ok(DesiredState { changes, problems: view.problems(), is_whole: view.is_whole() })
}
