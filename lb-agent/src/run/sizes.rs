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

/// Returns the size of each sizable map by name. `need` is what the objects need, `limit` the memory limit in bytes.
///
/// Maps in `existing` keep their sizes if these are large enough and fit the limit. It is for a `need` that may be only
/// a part: each start with another part would resize the tables of flows, which cuts connections.
pub(super) fn chosen(
    configured: &BTreeMap<String, u32>,
    need: &Limits,
    existing: &BTreeMap<&'static str, u32>,
    limit: Option<u64>,
) -> BTreeMap<String, u32> {
    let mut sizes: BTreeMap<&'static str, u32> =
        SHAPES.iter().map(|shape| (shape.name, shape.entries)).collect();
    sizes.extend(existing);
    let mut floors = BTreeMap::new();
    for shape in SHAPES.iter().filter(|shape| shape.content.may_shrink()) {
        let has_flows = ["FLOWS", "TRANSIENT"].iter().any(|name| shape.name.starts_with(name));
        let least = if has_flows { LEAST_FLOWS } else { LEAST };
        floors.insert(shape.name, least);
    }
    for (name, need) in by_name(need) {
        if let Some(has) = existing.get(name).filter(|has| need <= **has) {
            floors.insert(name, *has);
            continue;
        }
        // The size is doubled and rounded up to a power of two, so that restarts of a cluster of about the same size
        // get the same sizes.
        let wanted = need.saturating_mul(2).checked_next_power_of_two().unwrap_or(u32::MAX / 2);
        floors.insert(name, wanted.max(LEAST));
        let default = MapShape::of(name).map_or(0, |shape| shape.entries);
        sizes.insert(name, wanted.max(default));
    }
    for (name, entries) in configured {
        for shape in MapShape::sized_by(name) {
            floors.remove(shape.name);
            sizes.insert(shape.name, *entries);
        }
    }
    if let Some(limit) = limit {
        memory::fit(&mut sizes, &floors, need, limit);
    }
    let is_sizable =
        |name: &str| MapShape::of(name).is_some_and(|shape| shape.content.is_sizable());
    let sizes = sizes.into_iter().filter(|(name, _)| is_sizable(name));
    sizes.map(|(name, size)| (name.to_owned(), size)).collect()
}

/// Returns the maps that would be larger if they were created now. Maps with a configured size are left out.
pub(super) fn outgrown(
    configured: &BTreeMap<String, u32>,
    need: &Limits,
    has: &Limits,
    limit: Option<u64>,
) -> Vec<&'static str> {
    let wanted = chosen(configured, need, &BTreeMap::new(), limit);
    let is_small = |(name, has): &(&str, u32)| {
        // These maps only grow: a smaller one would drop entries for little gain.
        !configured.contains_key(*name) && wanted.get(*name).is_some_and(|wanted| wanted > has)
    };
    by_name(has).into_iter().filter(is_small).map(|(name, _)| name).collect()
}

const fn by_name(of: &Limits) -> [(&'static str, u32); 4] {
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

    fn nothing_pinned() -> BTreeMap<&'static str, u32> {
        BTreeMap::new()
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
        let sizes = chosen(&configured, &need, &nothing_pinned(), Some(256 << 20));
        assert_eq!((sizes["FLOWS6"], sizes["BACKENDS"]), (524_288, 524_288));
        assert!(sizes["FLOWS4"] < 524_288, "{sizes:?}");
        let has = Limits { services: 65_536, backends: 262_144, lines: 262_144, sources: 65_536 };
        assert_eq!(outgrown(&configured, &need, &has, Some(256 << 20)), ["BACKENDS"]);
    }

    #[test]
    fn part_of_the_objects_resizes_no_existing_map_but_enlarges_one_that_is_too_small() {
        let whole = Limits { services: 20_000, backends: 200_000, lines: 10, sources: 0 };
        let (nothing, limit) = (BTreeMap::new(), Some(256 << 20));
        let before = chosen(&nothing, &whole, &nothing_pinned(), limit);
        let existing: BTreeMap<&'static str, u32> = SHAPES
            .iter()
            .filter_map(|shape| Some((shape.name, *before.get(shape.name)?)))
            .collect();
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
