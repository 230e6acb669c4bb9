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
    let lines = endpoints.iter().map(|endpoints| lines_of(*endpoints) * ports * sets).sum();
    Limits {
        services: count * (ports + 1) + count * node_ports + others * ports,
        backends: endpoints.iter().sum::<u32>() * ports,
        lines,
        sources: spec.source_ranges.len() as u32 * ports,
    }
}
