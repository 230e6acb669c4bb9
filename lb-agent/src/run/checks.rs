//! Health checks of Services follow the maps: a load balancer must not be told of endpoints that the data path does not
//! serve.
//!
//! A listener closes, and a number falls, as soon as the change arrives. A listener opens, and a number rises, once the
//! maps have the change, as in kube-proxy, which reports after it has written its rules (contract 6.1). A Service of
//! which a port is not served, because a map is full or the kernel refused an entry, has no endpoints. Where an earlier
//! plan of the port is served, the number does not rise above that of the earlier plan.

use std::collections::{BTreeMap, BTreeSet};

use crate::health_check::HealthChecks;
use crate::plan::ServiceName;
use crate::translate::{HealthCheck, LocalReady, Translated};

/// The health checks, and what they wait for.
#[derive(Debug)]
pub(super) struct Checks {
    pub(super) listeners: HealthChecks,
    /// The health checks of all Services, as the objects want them.
    wanted: BTreeMap<ServiceName, HealthCheck>,
    /// Services whose newest plan is not in the maps.
    due: BTreeSet<ServiceName>,
    shortfall: Shortfall,
}

/// The Services whose newest plan is not in the maps, although nothing waits to be written.
#[derive(Debug, Default)]
pub(super) struct Shortfall {
    /// Services with a port that is not served.
    unserved: BTreeSet<ServiceName>,
    /// Services with a port that is served by an earlier plan.
    outdated: BTreeSet<ServiceName>,
}

impl Shortfall {
    /// Adds a Service with a refused port. `is_served`: an earlier plan of the port is served.
    pub(super) fn add(&mut self, service: ServiceName, is_served: bool) {
        let services = if is_served { &mut self.outdated } else { &mut self.unserved };
        services.insert(service);
    }
}

impl Checks {
    pub(super) fn new(listeners: HealthChecks) -> Self {
        Self {
            listeners,
            wanted: BTreeMap::new(),
            due: BTreeSet::new(),
            shortfall: Shortfall::default(),
        }
    }

    /// Takes in the plans of Services that changed; the maps do not have them yet.
    pub(super) fn take(&mut self, taken: &[(ServiceName, Option<Translated>)]) {
        let health = |translated: &Option<Translated>| translated.as_ref()?.health;
        // Ports are given up first, because another of these Services may take over the port.
        for (service, translated) in taken {
            self.listeners.give_up(service, health(translated));
        }
        for (service, translated) in taken {
            if let Some(wanted) = health(translated) {
                self.listeners.lower(service, wanted.local_ready);
                self.wanted.insert(service.clone(), wanted);
                self.due.insert(service.clone());
            } else {
                self.wanted.remove(service);
            }
        }
    }

    /// Opens and raises what the maps have by now.
    pub(super) fn programmed(&mut self, shortfall: Shortfall) {
        let mut changed = std::mem::take(&mut self.due);
        changed.extend(self.shortfall.unserved.symmetric_difference(&shortfall.unserved).cloned());
        for service in changed {
            let Some(wanted) = self.wanted.get(&service) else { continue };
            let is_unserved = shortfall.unserved.contains(&service);
            let is_outdated = shortfall.outdated.contains(&service);
            // The answer is 0 here: the number of the new plan is not true before the maps have the plan.
            if is_unserved || is_outdated && !self.listeners.has(&service) {
                let local_ready = LocalReady::default();
                self.listeners.set(&service, Some(HealthCheck { local_ready, ..*wanted }));
            } else if !is_outdated {
                self.listeners.set(&service, Some(*wanted));
            }
            // The maps still lack the newest plan, so the next call decides again.
            if is_outdated {
                self.due.insert(service);
            }
        }
        self.shortfall = shortfall;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::health::Health;

    fn name(of: &str) -> ServiceName {
        ServiceName { namespace: "shop".into(), name: of.into() }
    }

    /// Takes in a Service with this port and number of endpoints; `None` removes its health check.
    fn take(checks: &mut Checks, of: &str, wanted: Option<(u16, u32)>) {
        let health = wanted.map(|(port, ready)| HealthCheck {
            port,
            local_ready: LocalReady { v4: ready, v6: ready },
        });
        checks.take(&[(name(of), Some(Translated { health, ..Translated::default() }))]);
    }

    fn ready(checks: &Checks) -> [Option<u32>; 2] {
        ["web", "api"].map(|of| checks.listeners.local_ready(&name(of)))
    }

    fn served() -> Checks {
        let mut checks = Checks::new(HealthChecks::new(Health::new(Duration::ZERO)));
        take(&mut checks, "web", Some((30_001, 2)));
        take(&mut checks, "api", Some((30_002, 1)));
        assert_eq!(ready(&checks), [None, None], "the maps have nothing yet");
        checks.programmed(Shortfall::default());
        assert_eq!(ready(&checks), [Some(2), Some(1)]);
        checks
    }

    #[test]
    fn number_falls_at_once_and_rises_with_the_maps() {
        let mut checks = served();
        take(&mut checks, "web", Some((30_001, 0)));
        assert_eq!(ready(&checks), [Some(0), Some(1)]);
        take(&mut checks, "web", Some((30_001, 3)));
        assert_eq!(ready(&checks), [Some(0), Some(1)]);
        checks.programmed(Shortfall::default());
        assert_eq!(ready(&checks), [Some(3), Some(1)]);
    }

    #[test]
    fn port_closes_at_once_and_the_next_opens_with_the_maps() {
        let mut checks = served();
        take(&mut checks, "web", None);
        take(&mut checks, "api", Some((30_001, 1)));
        assert_eq!(ready(&checks), [None, None]);
        checks.programmed(Shortfall::default());
        assert_eq!(ready(&checks), [None, Some(1)]);
    }

    fn lacks(of: &str, is_served: bool) -> Shortfall {
        let mut shortfall = Shortfall::default();
        shortfall.add(name(of), is_served);
        shortfall
    }

    #[test]
    fn service_that_is_not_served_has_no_endpoints() {
        let mut checks = served();
        checks.programmed(lacks("web", false));
        assert_eq!(ready(&checks), [Some(0), Some(1)]);
        take(&mut checks, "web", Some((30_001, 4)));
        checks.programmed(lacks("web", false));
        assert_eq!(ready(&checks), [Some(0), Some(1)]);
        checks.programmed(Shortfall::default());
        assert_eq!(ready(&checks), [Some(4), Some(1)]);
    }

    #[test]
    fn number_of_an_outdated_service_only_falls() {
        let mut checks = served();
        for (wanted, expected) in [(4, 2), (1, 1), (3, 1)] {
            take(&mut checks, "web", Some((30_001, wanted)));
            checks.programmed(lacks("web", true));
            assert_eq!(ready(&checks), [Some(expected), Some(1)]);
        }
        take(&mut checks, "web", Some((30_003, 3)));
        checks.programmed(lacks("web", true));
        assert_eq!(ready(&checks), [Some(0), Some(1)], "at another port");
        checks.programmed(Shortfall::default());
        assert_eq!(ready(&checks), [Some(3), Some(1)]);
    }
}
