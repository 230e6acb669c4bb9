//! The fingerprint of the content of all maps except counters, committed beside the name of the layout (`LAYOUT`).

use lb_common::layout::number;
use lb_common::maps::Content;

use super::fingerprint::shaped;
use crate::datapath::names::LAYOUT;
use crate::maps::SHAPES;

/// Name and fingerprint. Both change together; the fingerprint alone may change while no release has the name.
const COMMITTED: (&str, u64) = ("v6", 0xd06b_7df0_da85_6de5);

/// Computes the fingerprint from names, key and value types, and kinds of maps.
fn fingerprint() -> u64 {
    let maps = SHAPES.iter().filter(|shape| shape.content != Content::Counters);
    maps.fold(0, |hash, shape| shaped(number(hash, shape.fingerprint), shape))
}

#[test]
fn layout_changes_with_the_contents_of_maps() {
    let now = (LAYOUT, fingerprint());
    assert_eq!(
        now, COMMITTED,
        "map contents differ from the recorded ones of this layout: if a release has it, change LAYOUT \
         (ADR 0005); then commit ({:?}, {:#018x})",
        now.0, now.1
    );
}
