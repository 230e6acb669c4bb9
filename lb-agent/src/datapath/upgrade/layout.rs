//! The fingerprint of everything that maps hold, committed beside the name of the layout (`LAYOUT`).

use lb_common::layout::{named, number};

use super::fingerprint::counters;
use crate::datapath::LAYOUT;
use crate::maps::{FINGERPRINTS, SHAPES};

/// Both move together; the second alone as long as no release has had the first.
const COMMITTED: (&str, u64) = ("v4", 0x6bc1_80f0_9aaf_846e);

/// Types of keys and values, kinds of maps, and the meaning of each counter by its position.
fn fingerprint() -> u64 {
    let types = FINGERPRINTS.iter().fold(0, |hash, of| number(hash, *of));
    let maps = SHAPES.iter().fold(types, |hash, shape| {
        let entries = if shape.is_sizable { 0 } else { shape.entries };
        number(named(named(hash, shape.name), &shape.to_string()), entries.into())
    });
    counters(maps)
}

#[test]
fn the_layout_moves_with_what_maps_hold() {
    let now = (LAYOUT, fingerprint());
    assert_eq!(
        now, COMMITTED,
        "maps do not hold what this layout is known for: where a release has had it, move LAYOUT \
         (ADR 0005); then commit ({:?}, {:#018x})",
        now.0, now.1
    );
}
