//! The fingerprint of everything that maps hold, but for counters, committed beside the name of the layout (`LAYOUT`).

use lb_common::layout::number;
use lb_common::maps::Content;

use super::fingerprint::shaped;
use crate::datapath::names::LAYOUT;
use crate::maps::SHAPES;

/// Both move together; the second alone as long as no release has had the first.
const COMMITTED: (&str, u64) = ("v6", 0x8bb8_6b63_f64f_4442);

/// Names, types of keys and values, and kinds of maps.
fn fingerprint() -> u64 {
    let maps = SHAPES.iter().filter(|shape| shape.content != Content::Counters);
    maps.fold(0, |hash, shape| shaped(number(hash, shape.meaning), shape))
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
