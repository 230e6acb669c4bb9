//! Estimates how many map entries the objects need, before anything is programmed. The sizes of the maps follow from
//! it.

use super::Tracker;
use super::index::Index;
use crate::plan::Family;
use crate::reconcile::{Limits, lines_of};
use crate::snapshot::{ServiceSpec, SliceSpec};

impl Tracker {
    /// Returns the most entries that each map needs for the objects known so far.
    pub fn demand(&self) -> Limits {
        self.index.demand()
    }
}

impl Index {
    fn demand(&self) -> Limits {
        // Row 0 of `BACKENDS` never belongs to an endpoint.
        let nothing = Limits { services: 0, backends: 1, lines: 0, sources: 0 };
        self.whole().fold(nothing, |sum, (spec, slices)| {
            let one = of_service(spec, slices);
            Limits {
                services: sum.services.saturating_add(one.services),
                backends: sum.backends.saturating_add(one.backends),
                lines: sum.lines.saturating_add(one.lines),
                sources: sum.sources.saturating_add(one.sources),
            }
        })
    }
}

fn of_service(spec: &ServiceSpec, slices: &[SliceSpec]) -> Limits {
    let families = Family::ALL.into_iter().filter(|family| spec.cluster.get(*family).is_some());
    let families: Vec<Family> = families.collect();
    let (count, ports) = (families.len() as u32, spec.ports.len() as u32);
    let others = (spec.external_ips.len() + spec.vips.len()) as u32;
    let node_ports = spec.ports.iter().filter(|port| port.node_port != 0).count() as u32;
    let of_family = |family: &Family| -> u32 {
        let own = slices.iter().filter(|slice| slice.family == Some(*family));
        own.map(|slice| slice.endpoints.len() as u32).sum()
    };
    let endpoints: Vec<u32> = families.iter().map(of_family).collect();
    // A policy Local needs a second set, with the endpoints of this node.
    let sets = 1 + u32::from(spec.internal_local || spec.external_local);
    let lines = endpoints.iter().map(|endpoints| lines_of(*endpoints)).fold(0, u32::saturating_add);
    let all = endpoints.into_iter().fold(0, u32::saturating_add);
    // With the ports and endpoints of a manifest, a product may exceed 32 bits.
    Limits {
        // Each ClusterIP has a marker beside its ports, which refuses all other ports (contract 13).
        services: (count * (ports + 1 + node_ports)).saturating_add(others.saturating_mul(ports)),
        backends: all.saturating_mul(ports),
        lines: lines.saturating_mul(ports).saturating_mul(sets),
        sources: (spec.source_ranges.len() as u32).saturating_mul(ports),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::snapshot::fixtures::{slice, web};

    #[test]
    fn demand_of_one_service_saturates() {
        let mut spec = web(json!({ "clusterIP": "10.0.0.1", "ports": [{ "port": 80 }] }));
        let mut slice = slice("web-1", &["10.1.0.1"]);
        let whole = of_service(&spec, std::slice::from_ref(&slice));
        assert_eq!((whole.services, whole.backends, whole.lines), (2, 1, lines_of(1)));
        spec.ports = vec![spec.ports[0].clone(); 70_000].into();
        slice.endpoints = vec![slice.endpoints[0].clone(); 70_000].into();
        let whole = of_service(&spec, &[slice]);
        assert_eq!((whole.services, whole.backends), (70_001, u32::MAX));
        assert!(whole.lines > 70_000);
    }
}
