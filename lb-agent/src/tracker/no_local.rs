//! The counts of the metric `no_local_endpoints` (contract 7).

use crate::plan::{Family, TrafficPolicy};
use crate::translate::Translated;

/// Numbers of service ports that a policy Local leaves without an endpoint here although others exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoLocal([[u32; 2]; 2]);

impl NoLocal {
    /// Returns the count of one family and policy.
    pub const fn get(&self, family: Family, policy: TrafficPolicy) -> u32 {
        self.0[family as usize][policy as usize]
    }

    /// Counts the ports of one Service.
    pub(super) fn of(translated: &Translated) -> Self {
        let mut found = Self::default();
        for plan in &translated.ports {
            for policy in [TrafficPolicy::Internal, TrafficPolicy::External] {
                let lacks = u32::from(plan.lacks_local(policy));
                found.0[plan.key.family as usize][policy as usize] += lacks;
            }
        }
        found
    }

    /// Replaces the previous counts of a Service in the totals.
    pub(super) fn replace(&mut self, before: Self, after: Self) {
        let totals = self.0.as_flattened_mut().iter_mut();
        let parts = before.0.as_flattened().iter().zip(after.0.as_flattened());
        for (total, (before, after)) in totals.zip(parts) {
            // The new value is added before the old one is subtracted, so that the sum does not pass below zero.
            *total = (*total + after).saturating_sub(*before);
        }
    }
}
