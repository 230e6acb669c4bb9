//! `ClusterIP`s that are addresses of this node with a listener of
//! its own, such as that of `NodeLocal` `DNSCache`: left to that.

use std::collections::BTreeSet;
use std::time::Duration;

use lb_common::addr::Ip;
use lb_common::service::{Flags, Frontend, Service};

use super::{Op, Reconciler, Transaction};

impl Reconciler {
    /// The ClusterIPs among these addresses, with each port of them that is served.
    pub fn cluster_frontends(&self, addresses: &BTreeSet<Ip>) -> BTreeSet<Frontend> {
        let written = self.frontends.written();
        let of = |ip: &Ip| {
            let ip = *ip;
            let all = written.range(Frontend::cluster_address(ip)..);
            all.take_while(move |(frontend, _)| frontend.ip == ip)
        };
        let others = Flags::EXTERNAL.0 | Flags::ADDRESS.0 | Flags::LEAVING.0;
        let is_asked = |service: &Service| service.flags.0 & others == 0;
        let all = addresses.iter().flat_map(of);
        all.filter(|(_, service)| is_asked(service)).map(|(frontend, _)| *frontend).collect()
    }

    /// Leaves these frontends to processes of this node, and serves those again
    /// that are none of them any more. Call it once all Services are known.
    pub fn keep(&mut self, now: Duration, kept: BTreeSet<Frontend>) -> Vec<Op> {
        if kept == self.kept {
            return Vec::new();
        }
        let changed = kept.symmetric_difference(&self.kept);
        let dirty = changed.flat_map(|it| [*it, Frontend::cluster_address(it.ip)]).collect();
        self.kept = kept;
        self.finish(now, Transaction { dirty, ..Transaction::default() })
    }

    /// The frontends that are left to processes of this node.
    pub const fn kept(&self) -> &BTreeSet<Frontend> {
        &self.kept
    }
}

/// Those that an earlier run left to processes of this node.
pub(super) fn of<'a>(
    written: impl IntoIterator<Item = (&'a Frontend, &'a Service)>,
) -> BTreeSet<Frontend> {
    let both = Flags::HOST.0 | Flags::ADDRESS.0;
    let ports = written.into_iter().filter(|(_, service)| service.flags.0 & both == Flags::HOST.0);
    ports.map(|(frontend, _)| *frontend).collect()
}

/// The entry of a frontend, with [`Flags::HOST`] where it is left to a process.
pub(super) fn marked(kept: &BTreeSet<Frontend>, frontend: Frontend, service: Service) -> Service {
    let is_kept = if service.flags.has(Flags::ADDRESS) {
        kept.range(frontend..).next().is_some_and(|first| first.ip == frontend.ip)
    } else {
        service.flags.0 & (Flags::EXTERNAL.0 | Flags::LEAVING.0) == 0 && kept.contains(&frontend)
    };
    let flags = if is_kept { service.flags.with(Flags::HOST) } else { service.flags };
    Service { flags, ..service }
}
