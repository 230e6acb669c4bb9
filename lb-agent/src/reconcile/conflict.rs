//! Frontends that several services claim: the oldest has them, and the others are reported.

use lb_common::service::Frontend;

use super::{Port, Reconciler};
use crate::plan::PortKey;

/// A frontend that several services ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub frontend: Frontend,
    /// The port that has it: the oldest.
    pub winner: PortKey,
    /// The ports that would take over, oldest first.
    pub losers: Vec<PortKey>,
}

impl Reconciler {
    /// How many frontends several services ask for.
    pub fn contested(&self) -> usize {
        self.frontends.contested().len()
    }

    /// The frontends that several services ask for.
    pub fn conflicts(&self) -> Vec<Conflict> {
        let conflict = |frontend: Frontend| {
            let mut ports: Vec<&Port> = self.claimants(frontend).collect();
            ports.sort_by_key(|port| port.seniority());
            let mut keys = ports.into_iter().map(|port| port.plan.key.clone());
            let winner = keys.next()?;
            Some(Conflict { frontend, winner, losers: keys.collect() })
        };
        self.frontends.contested().iter().copied().filter_map(conflict).collect()
    }

    fn claimants(&self, frontend: Frontend) -> impl Iterator<Item = &Port> {
        self.frontends.claimants(frontend).filter_map(|id| self.ports.get(id))
    }
}
