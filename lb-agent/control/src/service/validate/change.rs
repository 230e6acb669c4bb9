//! Validation of updates: fields that are immutable once they are set.

use super::load_balancer;
use crate::field::{Cause, list};
use crate::service::model::{SINGLE, Service};

const ONCE: &str = "may not change once set";

/// Returns the changes that an update may not make.
pub(crate) fn change(new: &Service, old: &Service) -> Vec<Cause> {
    let mut causes = Vec::new();
    // A change from or to `ExternalName` releases or allocates all addresses.
    if !new.is_external_name() && !old.is_external_name() {
        causes.extend(cluster_ips(new, old));
        causes.extend(families(new, old));
    }
    causes.extend(class(new, old));
    let (before, now) = (old.spec.health_check_node_port, new.spec.health_check_node_port);
    if old.needs_health_check() && new.needs_health_check() && before != now {
        causes.push(Cause::forbidden("spec.healthCheckNodePort", "field is immutable"));
    }
    causes
}

fn cluster_ips(new: &Service, old: &Service) -> Vec<Cause> {
    if new.is_headless() && old.is_headless() {
        return Vec::new();
    }
    let (before, now) = (&old.spec.cluster_ips, &new.spec.cluster_ips);
    let at = |index: usize, detail: &str| {
        Cause::invalid(format!("spec.clusterIPs[{index}]"), list(now), detail)
    };
    let pairs = before.iter().zip(now).enumerate();
    let mut differing = pairs.filter(|(_, (before, now))| before != now).map(|it| it.0);
    // The first address never changes. The second may be added or released, but not replaced.
    if before.len() == now.len() {
        return differing.map(|index| at(index, ONCE)).collect();
    }
    let mut causes = Vec::new();
    if now.is_empty() {
        causes.push(at(0, "primary clusterIP can not be unset"));
    }
    causes.extend(differing.next().filter(|it| *it == 0).map(|index| at(index, ONCE)));
    causes.extend(released(new, before.len(), now.len(), "clusterIP"));
    causes
}

fn families(new: &Service, old: &Service) -> Vec<Cause> {
    if new.is_headless() || old.is_headless() {
        return Vec::new();
    }
    let (before, now) = (&old.spec.ip_families, &new.spec.ip_families);
    let at =
        |value: &[String], detail: &str| Cause::invalid("spec.ipFamilies[0]", list(value), detail);
    if before.len() == now.len() {
        let pairs = before.iter().zip(now).filter(|(before, now)| before != now);
        return pairs.map(|_| at(now, ONCE)).collect();
    }
    let mut causes = Vec::new();
    if before.len() > now.len() && new.spec.cluster_ips.is_empty() {
        causes.push(at(now, "primary ipFamily can not be unset"));
    }
    let is_first_other = before.first().zip(now.first()).is_some_and(|(before, now)| before != now);
    if is_first_other {
        // Upstream reports the addresses as the value here, although the families are at fault.
        causes.push(at(&new.spec.cluster_ips, ONCE));
    }
    causes.extend(released(new, before.len(), now.len(), "ipFamily"));
    causes
}

fn released(new: &Service, before: usize, now: usize, what: &str) -> Option<Cause> {
    let is_silent = before > now && now == 1 && new.policy() != SINGLE;
    is_silent.then(|| {
        let detail = format!("must be set to 'SingleStack' when releasing the secondary {what}");
        Cause::invalid("spec.ipFamilyPolicy", new.spec.ip_family_policy.clone(), &detail)
    })
}

/// Checks the load balancer class: it is immutable while the type stays.
fn class(new: &Service, old: &Service) -> Vec<Cause> {
    let (before, now) = (&old.spec.load_balancer_class, &new.spec.load_balancer_class);
    let mut causes = Vec::new();
    if old.is_load_balancer() && new.is_load_balancer() && before != now {
        causes.push(Cause::invalid("spec.loadBalancerClass", now.clone(), ONCE));
    }
    // As upstream: the validation of the whole object reports an invalid class too, so an update has that cause twice.
    causes.extend(load_balancer::class(new));
    causes
}
