//! How large the maps are that the agent fills: what somebody said, else what the objects need with as much again
//! to grow, and never less than the default.

use std::collections::BTreeMap;

use crate::maps::Shape;
use crate::program::Limits;

/// Sizes of maps by name, given what the objects need.
pub(super) fn chosen(configured: BTreeMap<String, u32>, need: &Limits) -> BTreeMap<String, u32> {
    let mut sizes = configured;
    for (name, need) in by_name(need) {
        let default = Shape::of(name).map_or(0, |shape| shape.entries);
        // Twice, and in steps: the same at every start of a cluster that stays about as large.
        let wanted = need.saturating_mul(2).checked_next_power_of_two().unwrap_or(u32::MAX / 2);
        let wanted = wanted.max(default);
        let _: &mut u32 = sizes.entry(name.to_owned()).or_insert(wanted);
    }
    sizes
}

/// The maps that would be larger if they were made now. Those whose size somebody chose stay as they are.
pub(super) fn outgrown(
    configured: &BTreeMap<String, u32>,
    need: &Limits,
    has: &Limits,
) -> Vec<&'static str> {
    let wanted = chosen(configured.clone(), need);
    let is_small = |(name, has): &(&str, u32)| {
        !configured.contains_key(*name) && wanted.get(*name).is_some_and(|wanted| wanted > has)
    };
    by_name(has).into_iter().filter(is_small).map(|(name, _)| name).collect()
}

const fn by_name(of: &Limits) -> [(&'static str, u32); 4] {
    [
        ("SERVICES", of.services),
        ("BACKENDS", of.backends),
        ("SLOTS", of.lines),
        ("SOURCES", of.sources),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_counts_unless_somebody_says_otherwise() {
        let need = Limits { services: 150_000, backends: 250_001, lines: 10, sources: 0 };
        let configured = BTreeMap::from([("SERVICES".to_owned(), 100), ("FLOWS".to_owned(), 7)]);
        let sizes = chosen(configured, &need);
        assert_eq!(sizes["SERVICES"], 100);
        assert_eq!(sizes["BACKENDS"], 524_288);
        assert_eq!(sizes["SLOTS"], Shape::of("SLOTS").unwrap().entries);
        assert_eq!((sizes["FLOWS"], sizes.len()), (7, 5));
    }

    #[test]
    fn what_is_too_small_is_outgrown_unless_somebody_wants_it_so() {
        let has = Limits { services: 65_536, backends: 131_072, lines: 262_144, sources: 65_536 };
        let need = Limits { services: 70_000, backends: 140_000, lines: 10, sources: 0 };
        let configured = BTreeMap::from([("BACKENDS".to_owned(), 131_072)]);
        assert_eq!(outgrown(&configured, &need, &has), ["SERVICES"]);
        let has = Limits { services: 262_144, ..has };
        assert!(outgrown(&configured, &need, &has).is_empty());
    }
}
