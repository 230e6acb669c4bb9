//! Removes expired affinity: the timeout is over, or the service has no affinity any more.

use std::collections::HashMap;
use std::time::Duration;

use lb_common::service::{Service, ServiceId};

use crate::maps::{Error, Maps};

/// Removes expired entries of affinity, and returns their number.
pub(super) fn sweep(maps: &Maps, now: Duration) -> Result<usize, Error> {
    let known = maps.affinities()?;
    if known.is_empty() {
        return Ok(0);
    }
    // Services are read after the clients: a Service that appeared in between would otherwise seem to have no affinity,
    // and its clients would be removed.
    let timeouts = timeouts(maps.services()?.into_iter().map(|(_, service)| service));
    let is_over = |service: ServiceId, seen: u64| {
        // Without a timeout the Service has no affinity any more, or is gone.
        let timeout = Duration::from_secs(timeouts.get(&service).copied().unwrap_or(0).into());
        now.saturating_sub(Duration::from_nanos(seen)) >= timeout
    };
    let mut removed = 0;
    for (client, affinity) in known {
        // A client may return at any moment.
        if is_over(client.service, affinity.seen) && maps.remove_affinity(&client, affinity.seen)? {
            removed += 1;
        }
    }
    Ok(removed)
}

/// Returns the affinity timeout of each service. A draining frontend has none, but others of its service may.
fn timeouts(services: impl Iterator<Item = Service>) -> HashMap<ServiceId, u32> {
    let mut timeouts = HashMap::new();
    for service in services {
        let timeout: &mut u32 = timeouts.entry(service.id).or_default();
        *timeout = service.affinity.max(*timeout);
    }
    timeouts
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::service::Flags;

    #[test]
    fn a_frontend_that_left_ends_no_affinity_of_the_others() {
        let stays = Service { id: 1, affinity: 60, ..Service::default() };
        let left = Service { id: 1, flags: Flags::DRAINING, ..Service::default() };
        let alone = Service { id: 2, flags: Flags::DRAINING, ..Service::default() };
        for order in [[stays, left, alone], [left, alone, stays]] {
            assert_eq!(timeouts(order.into_iter()), HashMap::from([(1, 60), (2, 0)]));
        }
    }
}
