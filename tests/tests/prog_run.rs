//! The kernel twin: every fixture through `BPF_PROG_TEST_RUN` equals its run on this host. Needs root.

use std::collections::BTreeMap;

use lb_common::fake::fixtures;
use lb_tests::twin::{Kernel, compare, random};

#[test]
fn every_fixture_is_the_same_in_the_kernel() {
    let mut failed = Vec::new();
    // Loading costs seconds: one object for each size of the flow table.
    let mut kernels = BTreeMap::new();
    for fixture in fixtures::all() {
        let flows = fixture.tables.flow_capacity;
        let kernel =
            kernels.entry(flows).or_insert_with(|| Kernel::new(flows).expect("programs load"));
        let difference = compare(kernel, &fixture.tables, &fixture.steps, true)
            .unwrap_or_else(|error| panic!("{}: {error:#}", fixture.name));
        failed.extend(difference.map(|difference| (fixture.name, difference.what)));
    }
    for (name, what) in &failed {
        eprintln!("--- {name}: {what}");
    }
    assert!(failed.is_empty(), "{} fixtures differ", failed.len());
}

#[test]
fn random_packets_are_the_same_in_the_kernel() {
    random::run(50_000, 1).unwrap_or_else(|error| panic!("{error:#}"));
}
