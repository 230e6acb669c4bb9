//! How large the maps are that the agent fills: what somebody said, else what the objects need with as much again
//! to grow, and never less than the default.

use std::collections::BTreeMap;

use crate::maps::Shape;
use crate::program::Limits;

/// Sizes of maps by name, given what the objects need.
pub(super) fn chosen(configured: BTreeMap<String, u32>, need: &Limits) -> BTreeMap<String, u32> {
    let mut sizes = configured;
    let needs = [
        ("SERVICES", need.services),
        ("BACKENDS", need.backends),
        ("SLOTS", need.lines),
        ("SOURCES", need.sources),
    ];
    for (name, need) in needs {
        let default = Shape::of(name).map_or(0, |shape| shape.entries);
        // Twice, and in steps: the same at every start of a cluster that stays about as large.
        let wanted = need.saturating_mul(2).checked_next_power_of_two().unwrap_or(u32::MAX / 2);
        let wanted = wanted.max(default);
        let _: &mut u32 = sizes.entry(name.to_owned()).or_insert(wanted);
    }
    sizes
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
}
