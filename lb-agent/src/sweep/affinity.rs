//! Affinity that counts no more: its time is over, or its service has none any more.

use std::collections::HashMap;
use std::time::Duration;

use lb_common::flow::Client;
use lb_common::service::ServiceId;

use crate::maps::{Error, Maps};

/// Removes it, and says how much.
pub(super) fn sweep(maps: &Maps, now: Duration) -> Result<usize, Error> {
    let known = maps.affinities()?;
    if known.is_empty() {
        return Ok(0);
    }
    let services = maps.services()?;
    let timeouts: HashMap<ServiceId, u32> =
        services.iter().map(|(_, service)| (service.id, service.affinity)).collect();
    let is_over = |service: ServiceId, seen: u64| {
        let timeout = Duration::from_secs(timeouts.get(&service).copied().unwrap_or(0).into());
        now.saturating_sub(Duration::from_nanos(seen)) >= timeout
    };
    let over: Vec<Client> = known
        .into_iter()
        .filter(|(client, affinity)| is_over(client.service, affinity.seen))
        .map(|(client, _)| client)
        .collect();
    maps.remove_affinities(&over)?;
    Ok(over.len())
}
