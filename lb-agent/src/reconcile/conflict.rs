//! Frontends that several services claim. The service whose `ClusterIP` a frontend is gets it, else the oldest one with
//! endpoints; the others are reported (contract 1.6).

use lb_common::service::Frontend;

use super::{MirroredPort, Reconciler};
use crate::plan::PortKey;

/// A frontend that several services claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub frontend: Frontend,
    /// The port that has the frontend: the one whose `ClusterIP` it is, else the oldest with endpoints.
    pub winner: PortKey,
    /// The other ports, in the order in which they would have it.
    pub losers: Vec<PortKey>,
}

impl Reconciler {
    /// Returns the number of frontends that several services claim.
    pub fn contested(&self) -> usize {
        self.frontends.contested().len()
    }

    /// Returns the frontends that several services claim.
    pub fn conflicts(&self) -> Vec<Conflict> {
        let conflict = |frontend: Frontend| {
            let mut ports: Vec<&MirroredPort> = self.claimants(frontend).collect();
            ports.sort_by_key(|port| port.claim_rank(frontend));
            let mut keys = ports.into_iter().map(|port| port.plan.key.clone());
            let winner = keys.next()?;
            Some(Conflict { frontend, winner, losers: keys.collect() })
        };
        self.frontends.contested().iter().copied().filter_map(conflict).collect()
    }

    fn claimants(&self, frontend: Frontend) -> impl Iterator<Item = &MirroredPort> {
        self.frontends.claimants(frontend).filter_map(|id| self.ports.get(id))
    }
}
