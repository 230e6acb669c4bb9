//! `ClusterIP`s that are addresses of this node and on which a process listens, such as `NodeLocal DNSCache`: packets
//! to them are left to the process.

use std::collections::BTreeSet;
use std::time::Duration;

use lb_common::addr::Ip;
use lb_common::service::{Flags, Frontend, Service};

use super::{Op, Reconciler, Transaction};

impl Reconciler {
    /// Returns the served `ClusterIP` frontends at these addresses.
    pub fn cluster_frontends(&self, addresses: &BTreeSet<Ip>) -> BTreeSet<Frontend> {
        let written = self.frontends.written();
        let of = |ip: &Ip| {
            let ip = *ip;
            let all = written.range(Frontend::cluster_address(ip)..);
            all.take_while(move |(frontend, _)| frontend.ip == ip)
        };
        let others = Flags::EXTERNAL.0 | Flags::ADDRESS.0 | Flags::DRAINING.0;
        let is_asked = |service: &Service| service.flags.0 & others == 0;
        let all = addresses.iter().flat_map(of);
        all.filter(|(_, service)| is_asked(service)).map(|(frontend, _)| *frontend).collect()
    }

    /// Leaves these frontends to processes of this node, and serves the others again. Call it once all Services are
    /// known.
    pub fn keep(&mut self, now: Duration, kept: BTreeSet<Frontend>) -> Vec<Op> {
        if kept == self.kept {
            return Vec::new();
        }
        // The marker of the address carries the flag of its ports, so it is written again as well.
        let changed = kept.symmetric_difference(&self.kept);
        let dirty = changed.flat_map(|it| [*it, Frontend::cluster_address(it.ip)]).collect();
        self.kept = kept;
        self.finish(now, Transaction { dirty, ..Transaction::default() })
    }

    /// Returns the frontends that are left to processes of this node.
    pub const fn kept(&self) -> &BTreeSet<Frontend> {
        &self.kept
    }
}

/// Returns the frontends that an earlier run left to processes of this node.
pub(super) fn of<'a>(
    written: impl IntoIterator<Item = (&'a Frontend, &'a Service)>,
) -> BTreeSet<Frontend> {
    let both = Flags::HOST.0 | Flags::ADDRESS.0;
    let ports = written.into_iter().filter(|(_, service)| service.flags.0 & both == Flags::HOST.0);
    ports.map(|(frontend, _)| *frontend).collect()
}

/// Adds [`Flags::HOST`] to an entry that is left to a process. A marker of a `ClusterIP` gets it if any of its ports
/// is.
pub(super) fn marked(kept: &BTreeSet<Frontend>, frontend: Frontend, service: Service) -> Service {
    let is_kept = if service.flags.has(Flags::ADDRESS) {
        kept.range(frontend..).next().is_some_and(|first| first.ip == frontend.ip)
    } else {
        service.flags.0 & (Flags::EXTERNAL.0 | Flags::DRAINING.0) == 0 && kept.contains(&frontend)
    };
    let flags = if is_kept { service.flags.with(Flags::HOST) } else { service.flags };
    Service { flags, ..service }
}
