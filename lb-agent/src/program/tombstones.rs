//! Frontends of services that left, kept for as long as flows go there.

use std::collections::BTreeSet;
use std::time::Duration;

use lb_common::service::{Frontend, ServiceId};

use super::{GRACE, Op, Programmer};

impl Programmer {
    /// Removes the tombstones that no flow uses.
    ///
    /// `live` are the frontends that flows of the leaving services go to; `began` is when the look at
    /// the flows began: younger tombstones may have flows it missed.
    pub fn bury(
        &mut self,
        now: Duration,
        began: Duration,
        live: &BTreeSet<(ServiceId, Frontend)>,
    ) -> Vec<Op> {
        let mut ops = Vec::new();
        let old = |since: Duration| since + GRACE <= began;
        let dead = self.frontends.tombstones().filter(|(_, _, since)| old(*since));
        let dead = dead.filter(|(frontend, id, _)| !is_live(live, **frontend, *id));
        let dead: Vec<Frontend> = dead.map(|(frontend, _, _)| *frontend).collect();
        if !dead.is_empty() {
            self.frontends.bury(&dead, &mut ops);
            self.frontends.update(&mut self.settings, &mut ops);
            self.has_room = true;
            ops.extend(self.retry(now));
        }
        ops
    }

    /// Services whose flows are asked for by [`Programmer::bury`].
    pub fn leaving(&self) -> BTreeSet<ServiceId> {
        self.frontends.tombstones().map(|(_, id, _)| id).collect()
    }
}

/// Whether a flow of `id` goes to `frontend`; a `NodePort` is reached by any address of the family.
fn is_live(live: &BTreeSet<(ServiceId, Frontend)>, frontend: Frontend, id: ServiceId) -> bool {
    let same = |other: &Frontend| {
        let node_port = Frontend::node_port(other.ip, other.port, other.protocol);
        *other == frontend || node_port == frontend
    };
    let from = (id, Frontend::default());
    let mut flows = live.range(from..).take_while(|(other, _)| *other == id);
    flows.any(|(_, other)| same(other))
}
