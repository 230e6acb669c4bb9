//! Names backends to which rules of the node drop packets in an earlier hook than kube-proxy's translation
//! ([`raw_rules`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use lb_common::addr::Ip;
use tracing::{debug, warn};

use crate::node::raw_rules;
use crate::reconcile::Reconciler;

/// Interval between readings of the rules, which take a few system calls.
const PERIOD: Duration = Duration::from_secs(10);

/// The rules as last read.
#[derive(Debug, Default)]
pub(super) struct EarlyDrops {
    read: Option<Instant>,
    dropped: BTreeMap<Ip, String>,
    named: BTreeSet<Ip>,
}

impl EarlyDrops {
    /// Returns the problems for operators, and logs new ones.
    pub(super) fn problems(&mut self, reconciler: &Reconciler) -> Vec<String> {
        // All rules are dumped, which takes long on hosts with many; they change rarely.
        if self.read.is_none_or(|read| read.elapsed() >= PERIOD) {
            self.read = Some(Instant::now());
            self.dropped = raw_rules::dropped().unwrap_or_else(|error| {
                // Not a problem for operators: a kernel without nftables has no such rules.
                debug!(%error, "rules of nftables could not be read");
                BTreeMap::new()
            });
        }
        if self.dropped.is_empty() {
            self.named.clear();
            return Vec::new();
        }
        let backends = reconciler.backends_among(&self.dropped.keys().copied().collect());
        for backend in backends.difference(&self.named) {
            let backend = IpAddr::from(*backend);
            warn!(%backend, "nftables rules of this node drop packets to a backend");
        }
        let problem = |backend: &Ip| {
            let (chain, backend) = (self.dropped.get(backend)?, IpAddr::from(*backend));
            Some(format!(
                "backend {backend}: {chain} drops packets to it, also those to its Services; if the \
                 rule is Docker's, publish the port or set allow-direct-routing in Docker"
            ))
        };
        let problems = backends.iter().filter_map(problem).collect();
        self.named = backends;
        problems
    }
}
