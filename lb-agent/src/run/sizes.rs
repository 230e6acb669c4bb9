//! Sizes of the maps: the configured one, else twice what the objects need and at least the default, unless the agent's
//! memory limit is too small for that. While not all objects are known, existing maps keep their sizes.

use std::collections::BTreeMap;

use lb_common::maps::name;

use super::memory;
use crate::maps::{MapShape, SHAPES};
use crate::reconcile::Limits;

/// Smallest size of tables that packets fill, whatever the memory limit.
///
/// Transient entries must outlast a flood: 16,384 last half a second at 30,000 packets a second. A table of protected
/// flows that shrinks cuts connections.
const LEAST: u32 = 4_096;
const LEAST_FLOWS: u32 = 16_384;

/// The maps of an earlier run.
#[derive(Debug, Default)]
pub(super) struct Existing {
    /// Sizes by name. Maps of the desired state never shrink.
    pub(super) sizes: BTreeMap<&'static str, u32>,
    /// Whether all maps keep their sizes if these are large enough and fit the limit. It is for a need that may be only
    /// a part: each start with another part would resize the tables of flows, which cuts connections.
    pub(super) stay: bool,
}

/// Returns the size of each sizable map by name. `need` is what the objects need, `limit` the memory limit in bytes.
pub(super) fn chosen(
    configured: &BTreeMap<String, u32>,
    need: &Limits,
    existing: &Existing,
    limit: Option<u64>,
) -> BTreeMap<String, u32> {
    let mut sizes: BTreeMap<&'static str, u32> =
        SHAPES.iter().map(|shape| (shape.name, shape.entries)).collect();
    if existing.stay {
        sizes.extend(&existing.sizes);
    }
    let mut floors = BTreeMap::new();
    for shape in SHAPES.iter().filter(|shape| shape.content.may_shrink()) {
        floors.insert(shape.name, if has_flows(shape) { LEAST_FLOWS } else { LEAST });
    }
    for (name, need) in by_name(need) {
        let has = existing.sizes.get(name).copied().unwrap_or(0);
        if existing.stay && need <= has {
            floors.insert(name, has);
            continue;
        }
        // The size is doubled and rounded up to a power of two, so that restarts of a cluster of about the same size
        // get the same sizes.
        let wanted = need.saturating_mul(2).checked_next_power_of_two().unwrap_or(u32::MAX / 2);
        floors.insert(name, wanted.max(LEAST).max(has));
        let default = MapShape::of(name).map_or(0, |shape| shape.entries);
        sizes.insert(name, wanted.max(default).max(has));
    }
    for (name, entries) in configured {
        for shape in MapShape::sized_by(name) {
            // Without a floor `memory::fit` leaves the map alone: a configured size counts whatever the limit is (ADR
            // 0032).
            floors.remove(shape.name);
            sizes.insert(shape.name, *entries);
        }
    }
    if let Some(limit) = limit {
        // Maps of Services give up their growth before the tables of flows shrink further.
        cap(&mut sizes, &mut floors, existing, need, limit);
        memory::fit(&mut sizes, &floors, need, limit);
    }
    let is_sizable =
        |name: &str| MapShape::of(name).is_some_and(|shape| shape.content.is_sizable());
    let sizes = sizes.into_iter().filter(|(name, _)| is_sizable(name));
    sizes.map(|(name, size)| (name.to_owned(), size)).collect()
}

fn has_flows(shape: &MapShape) -> bool {
    ["FLOWS", "TRANSIENT"].iter().any(|name| shape.name.starts_with(name))
}

/// Halves the growth of maps of Services, the largest map first, until all maps fit the limit beside tables of flows of
/// a quarter of their default size; none below the size that it has, or its default.
///
/// One Service that is too large is refused by name then. Otherwise the flow tables of all others would pay for it, or
/// the kernel would refuse to create the maps, at each start again.
fn cap(
    sizes: &mut BTreeMap<&'static str, u32>,
    floors: &mut BTreeMap<&'static str, u32>,
    existing: &Existing,
    need: &Limits,
    limit: u64,
) {
    loop {
        let mut least = sizes.clone();
        least.extend(&*floors);
        let flows = SHAPES.iter().filter(|it| has_flows(it) && floors.contains_key(it.name));
        least.extend(flows.map(|shape| (shape.name, shape.entries / 4)));
        if memory::fits(&least, need, limit) {
            return;
        }
        let grown = by_name(need).into_iter().filter_map(|(name, _)| {
            let (size, shape) = (*floors.get(name)?, MapShape::of(name)?);
            let kept = existing.sizes.get(name).copied().unwrap_or(shape.entries);
            (size > kept).then(|| (shape.bytes(size), name, kept.max(size / 2)))
        });
        // No map is left that has grown: the limit is too small, which `memory::problem` reports.
        let Some((_, name, smaller)) = grown.max() else { return };
        floors.insert(name, smaller);
        sizes.insert(name, smaller);
    }
}

/// Returns the maps that would be larger if they were created now, within the memory limit. Maps with a configured size
/// are left out. `has`: their sizes.
pub(super) fn outgrown(
    configured: &BTreeMap<String, u32>,
    need: &Limits,
    has: &Limits,
    limit: Option<u64>,
) -> Vec<&'static str> {
    let existing = Existing { sizes: by_name(has).into_iter().collect(), stay: false };
    let wanted = chosen(configured, need, &existing, limit);
    let is_small = |(name, has): &(&str, u32)| {
        !configured.contains_key(*name) && wanted.get(*name).is_some_and(|wanted| wanted > has)
    };
    by_name(has).into_iter().filter(is_small).map(|(name, _)| name).collect()
}

/// Returns the numbers by the name of their map.
pub(super) const fn by_name(of: &Limits) -> [(&'static str, u32); 4] {
    [
        (name::SERVICES, of.services),
        (name::BACKENDS, of.backends),
        (name::MAGLEV, of.lines),
        (name::SOURCE_RANGES, of.sources),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing_pinned() -> Existing {
        Existing::default()
    }

    #[test]
    fn sizes_follow_the_counts_unless_configured() {
        let need = Limits { services: 150_000, backends: 250_001, lines: 10, sources: 0 };
        let configured = BTreeMap::from([("SERVICES".to_owned(), 100), ("FLOWS".to_owned(), 7)]);
        let sizes = chosen(&configured, &need, &nothing_pinned(), None);
        assert_eq!(sizes["SERVICES"], 100);
        assert_eq!(sizes["BACKENDS"], 524_288);
        assert_eq!((sizes["FLOWS4"], sizes["FLOWS6"]), (7, 7));
        assert_eq!(sizes["MAGLEV"], MapShape::of("MAGLEV").unwrap().entries);
    }

    #[test]
    fn memory_limit_reduces_only_unconfigured_sizes() {
        let need = Limits { services: 100, backends: 200_000, lines: 10, sources: 0 };
        let configured = BTreeMap::from([("FLOWS6".to_owned(), 524_288)]);
        let sizes = chosen(&configured, &need, &nothing_pinned(), Some(384 << 20));
        assert_eq!((sizes["FLOWS6"], sizes["BACKENDS"]), (524_288, 524_288));
        assert!(sizes["FLOWS4"] < 524_288, "{sizes:?}");
        let has = Limits { services: 65_536, backends: 262_144, lines: 262_144, sources: 65_536 };
        assert_eq!(outgrown(&configured, &need, &has, Some(384 << 20)), ["BACKENDS"]);
    }

    #[test]
    fn part_of_the_objects_resizes_no_existing_map_but_enlarges_one_that_is_too_small() {
        let whole = Limits { services: 20_000, backends: 200_000, lines: 10, sources: 0 };
        let (nothing, limit) = (BTreeMap::new(), Some(256 << 20));
        let before = chosen(&nothing, &whole, &nothing_pinned(), limit);
        let sizes = SHAPES.iter();
        let sizes = sizes.filter_map(|shape| Some((shape.name, *before.get(shape.name)?)));
        let existing = Existing { sizes: sizes.collect(), stay: true };
        let part = Limits { services: 10, backends: 20, lines: 10, sources: 0 };
        assert_ne!(chosen(&nothing, &part, &nothing_pinned(), limit), before);
        assert_eq!(chosen(&nothing, &part, &existing, limit), before);
        let more = Limits { services: 100_000, ..part };
        let enlarged = chosen(&nothing, &more, &existing, None);
        assert_eq!(enlarged["SERVICES"], 262_144);
        let same = |(name, size): (&String, &u32)| name == "SERVICES" || before[name] == *size;
        assert!(enlarged.iter().all(same), "{enlarged:?}");
        let configured = BTreeMap::from([("FLOWS".to_owned(), 7)]);
        assert_eq!(chosen(&configured, &part, &existing, limit)["FLOWS4"], 7);
    }

    #[test]
    fn need_of_the_run_before_counts_beside_the_objects_so_far() {
        let before = Limits { services: 70_000, backends: 5, lines: 3, sources: 0 };
        let counted = Limits { services: 10, backends: 6, lines: 3, sources: 1 };
        let need = Limits { services: 70_000, backends: 6, lines: 3, sources: 1 };
        assert_eq!(before.max(counted), need);
        let sizes = chosen(&BTreeMap::new(), &need, &nothing_pinned(), None);
        assert_eq!(sizes["SERVICES"], 262_144);
    }

    #[test]
    fn large_cluster_within_the_limit_of_the_manifest_keeps_its_flows() {
        let need = Limits { services: 30_000, backends: 135_000, lines: 30_000, sources: 0 };
        let sizes = chosen(&BTreeMap::new(), &need, &nothing_pinned(), Some(512 << 20));
        assert_eq!((sizes["FLOWS4"], sizes["FLOWS6"]), (524_288, 524_288), "ADR 0032");
    }

    #[test]
    fn service_that_does_not_fit_the_limit_costs_few_flows_and_no_failed_start() {
        let (nothing, limit) = (BTreeMap::new(), Some(512 << 20));
        // 1,000 ports at 1,001 addresses, and 20,000 ports with 60 endpoints.
        let addresses = Limits { services: 1_001_001, backends: 1, lines: 0, sources: 0 };
        let lines = Limits { services: 0, lines: 3_160_000, ..addresses };
        let ports = Limits { services: 20_001, backends: 1_200_001, ..lines };
        let all = Limits { services: u32::MAX, backends: u32::MAX, ..lines };
        for need in [addresses, lines, ports, all] {
            let sizes = chosen(&nothing, &need, &nothing_pinned(), limit);
            assert!(sizes["FLOWS4"] >= 65_536 && sizes["FLOWS6"] >= 65_536, "{sizes:?}");
            assert_eq!(memory::problem(&sizes, &need, limit), None, "{sizes:?}");
            // The agent restarts once, and not again for the same objects.
            let has = Limits {
                services: sizes["SERVICES"],
                backends: sizes["BACKENDS"],
                lines: sizes["MAGLEV"],
                sources: sizes["SOURCE_RANGES"],
            };
            assert!(outgrown(&nothing, &need, &has, limit).is_empty(), "{sizes:?}");
        }
    }

    /// The maps of Services of a large cluster stay, and the sum counts them as they are.
    #[test]
    fn map_of_services_never_shrinks_and_counts_with_its_size() {
        let (nothing, limit) = (BTreeMap::new(), Some(512 << 20));
        let existing = Existing { sizes: [("BACKENDS", 524_288)].into(), stay: false };
        let need = Limits { services: 50_001, backends: 1_335_000, lines: 190_000, sources: 0 };
        let sizes = chosen(&nothing, &need, &existing, limit);
        assert!(sizes["BACKENDS"] >= 524_288, "{sizes:?}");
        assert_eq!(memory::problem(&sizes, &need, limit), None, "{sizes:?}");
    }

    #[test]
    fn flows_have_a_floor_and_their_size_of_a_small_limit() {
        let sizes = |need: &Limits| {
            let sizes = chosen(&BTreeMap::new(), need, &nothing_pinned(), Some(128 << 20));
            ["FLOWS4", "FLOWS6"].map(|name| sizes[name])
        };
        let nothing = Limits { services: 0, backends: 1, lines: 0, sources: 0 };
        assert_eq!(sizes(&nothing), [32_768; 2], "ADR 0032");
        assert_eq!(sizes(&Limits { services: 100_000, ..nothing }), [16_384; 2]);
    }

    #[test]
    fn map_that_is_too_small_is_outgrown_unless_configured() {
        let has = Limits { services: 65_536, backends: 131_072, lines: 262_144, sources: 65_536 };
        let need = Limits { services: 70_000, backends: 140_000, lines: 10, sources: 0 };
        let configured = BTreeMap::from([("BACKENDS".to_owned(), 131_072)]);
        assert_eq!(outgrown(&configured, &need, &has, None), ["SERVICES"]);
        let has = Limits { services: 262_144, ..has };
        assert!(outgrown(&configured, &need, &has, None).is_empty());
    }
}
