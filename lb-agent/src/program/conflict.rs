//! Frontends that several services ask for: the oldest has them, and who loses is told.

use lb_common::service::Frontend;

use super::{Port, Programmer};
use crate::plan::PortKey;

/// A frontend that several services ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The frontend.
    pub frontend: Frontend,
    /// Who has it: the oldest.
    pub winner: PortKey,
    /// Who would take over, oldest first.
    pub losers: Vec<PortKey>,
}

impl Programmer {
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
        self.frontends.claimants(frontend).filter_map(|id| self.ports.get(&id).map(|port| &**port))
    }
}
