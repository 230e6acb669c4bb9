//! When to look for sockets whose backend left: when rows changed, and now and then.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::maps::Maps;
use crate::metrics::Numbers;
use crate::program::Op;
use crate::sockets::{self, GRACE};

/// A connect(2) that chose a row just before it changed is not connected yet when we are told: look again.
const AGAIN: Duration = Duration::from_secs(5);

/// Looks for orphans in a task of its own; a burst of changes is one look.
#[derive(Debug)]
pub(super) struct Orphans {
    changed: Arc<Notify>,
}

impl Orphans {
    pub(super) fn start(maps: Arc<Maps>, numbers: Arc<Numbers>) -> Self {
        let changed = Arc::new(Notify::new());
        drop(tokio::spawn(follow(Arc::clone(&changed), maps, numbers)));
        Self { changed }
    }

    /// After operations were applied.
    pub(super) fn look(&self, is_due: bool) {
        if is_due {
            self.changed.notify_one();
        }
    }
}

/// Whether operations may end an endpoint.
pub(super) fn may_orphan(ops: &[Op]) -> bool {
    ops.iter().any(|op| matches!(op, Op::PutBackend { .. }))
}

async fn follow(changed: Arc<Notify>, maps: Arc<Maps>, numbers: Arc<Numbers>) {
    let mut is_failing = false;
    let mut known = sockets::Orphans::new();
    loop {
        let again = if known.is_empty() { AGAIN } else { GRACE };
        drop(timeout(again, changed.notified()).await);
        let maps = Arc::clone(&maps);
        let mut orphans = std::mem::take(&mut known);
        let look = spawn_blocking(move || (sockets::end_orphans(&maps, &mut orphans), orphans));
        let result = look.await.map(|(result, left)| {
            known = left;
            result
        });
        match result {
            Ok(Ok(ended)) => {
                if ended > 0 {
                    info!(ended, "connected UDP sockets whose backend left were ended");
                }
                Numbers::add(&numbers.ended, ended);
                is_failing = false;
            }
            Ok(Err(error)) => {
                if !is_failing {
                    let error = crate::chain(&error);
                    warn!(
                        error,
                        "connected UDP sockets stay with backends that left; trying again"
                    );
                }
                is_failing = true;
            }
            // The runtime ends.
            Err(_) => return,
        }
    }
}
