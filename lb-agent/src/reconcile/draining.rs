//! Frontends of removed services, kept while flows use them.

use std::collections::BTreeSet;
use std::time::Duration;

use lb_common::service::Frontend;

use super::{GRACE, Op, Reconciler};

impl Reconciler {
    /// Removes the draining frontends that no flow uses.
    ///
    /// `live` are those of [`Reconciler::draining`] with flows, whichever service had the frontend when a flow began
    /// (it may have passed to another one since). `began` is the time when reading the flows began: frontends that
    /// began to drain later may have flows that were missed.
    pub fn remove_drained(
        &mut self,
        now: Duration,
        began: Duration,
        live: &BTreeSet<Frontend>,
    ) -> Vec<Op> {
        let mut ops = Vec::new();
        // A packet that read the entry before it drained may still create a flow during the grace period.
        let old = |since: Duration| since + GRACE <= began;
        let dead = self.frontends.draining().filter(|(_, since)| old(*since));
        let dead = dead.filter(|(frontend, _)| !live.contains(frontend));
        let dead: Vec<Frontend> = dead.map(|(frontend, _)| *frontend).collect();
        if !dead.is_empty() {
            self.frontends.remove_drained(&dead, &mut ops);
            self.frontends.update(&mut self.settings, &mut ops);
            self.refused.record(true);
            ops.extend(self.retry(now));
        }
        ops
    }

    /// Returns the draining frontends, for [`Reconciler::remove_drained`].
    pub fn draining(&self) -> BTreeSet<Frontend> {
        self.frontends.draining().map(|(frontend, _)| *frontend).collect()
    }
}
