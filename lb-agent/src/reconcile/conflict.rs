//! Frontends that several services claim: the oldest service with endpoints gets them, and the others are reported
//! (contract 1.6).

use lb_common::service::Frontend;

use super::{MirroredPort, Reconciler};
use crate::plan::PortKey;

/// A frontend that several services claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub frontend: Frontend,
    /// The port that has the frontend: the oldest with endpoints.
    pub winner: PortKey,
    /// The other ports, those with endpoints first, then the oldest first.
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
            ports.sort_by_key(|port| port.claim());
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
