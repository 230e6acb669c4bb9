//! Frontends of services that left, kept for as long as flows go there.

use std::collections::BTreeSet;
use std::time::Duration;

use lb_common::service::Frontend;

use super::{GRACE, Op, Reconciler};

impl Reconciler {
    /// Removes the draining frontends that no flow uses.
    ///
    /// `live` are those of [`Reconciler::leaving`] that flows go to, whichever service
    /// had the frontend when a flow began: it may have passed to another since. `began`
    /// is when the look at the flows began: younger ones may have flows it missed.
    pub fn remove_drained(
        &mut self,
        now: Duration,
        began: Duration,
        live: &BTreeSet<Frontend>,
    ) -> Vec<Op> {
        let mut ops = Vec::new();
        let old = |since: Duration| since + GRACE <= began;
        let dead = self.frontends.draining().filter(|(_, since)| old(*since));
        let dead = dead.filter(|(frontend, _)| !live.contains(frontend));
        let dead: Vec<Frontend> = dead.map(|(frontend, _)| *frontend).collect();
        if !dead.is_empty() {
            self.frontends.remove_drained(&dead, &mut ops);
            self.frontends.update(&mut self.settings, &mut ops);
            self.refused.note(true);
            ops.extend(self.retry(now));
        }
        ops
    }

    /// Frontends whose flows are asked for by [`Reconciler::remove_drained`].
    pub fn leaving(&self) -> BTreeSet<Frontend> {
        self.frontends.draining().map(|(frontend, _)| *frontend).collect()
    }
}
