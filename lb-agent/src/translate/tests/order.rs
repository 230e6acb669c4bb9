//! Properties: order does not matter, and the sets are those of contract 2.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use crate::snapshot::fixtures::{here, slice, web_with_vips};
use crate::snapshot::{ServiceSpec, SliceSpec};
use crate::translate::service;

fn spec(internal: bool, external: bool) -> ServiceSpec {
    let policy = |local| if local { "Local" } else { "Cluster" };
    web_with_vips(
        json!({
            "type": "LoadBalancer", "clusterIPs": ["10.0.0.1", "fd00::1"],
            "ports": [{ "port": 80, "nodePort": 30080 }], "healthCheckNodePort": 32000,
            "internalTrafficPolicy": policy(internal), "externalTrafficPolicy": policy(external),
            "externalIPs": ["198.51.100.2", "198.51.100.1"],
            "loadBalancerSourceRanges": ["192.168.0.0/16", "203.0.113.0/24"],
        }),
        &["192.0.2.2", "192.0.2.1"],
    )
}

fn endpoint() -> impl Strategy<Value = String> {
    let state = prop::sample::select(vec!["", "draining", "unready", "gone", "starting"]);
    let node = prop::sample::select(vec!["", "@here", "@there"]);
    let hint =
        prop::sample::select(vec!["", "zones=z1", "zones=z2,z1", "nodes=here", "nodes=x zones=z2"]);
    (0..6_u8, state, node, hint)
        .prop_map(|(last, state, node, hint)| format!("10.1.0.{last} {node} {state} {hint}"))
}

fn slices() -> impl Strategy<Value = Vec<SliceSpec>> {
    prop::collection::vec(prop::collection::vec(endpoint(), 0..5), 0..5).prop_map(|lists| {
        let named = lists.iter().enumerate().map(|(at, list)| {
            let words: Vec<_> = list.iter().map(String::as_str).collect();
            slice(&format!("web-{at}"), &words)
        });
        named.collect()
    })
}

proptest! {
    #[test]
    fn the_order_of_slices_and_lists_does_not_matter(
        slices in slices(),
        turn in 0..5_usize,
        internal: bool,
        external: bool,
    ) {
        let spec = spec(internal, external);
        let refs: Vec<_> = slices.iter().collect();
        let mut turned = refs.clone();
        turned.reverse();
        if !turned.is_empty() {
            let middle = turn % turned.len();
            turned.rotate_left(middle);
        }
        let mut other = spec.clone();
        other.vips.reverse();
        other.external_ips.reverse();
        other.source_ranges.reverse();
        prop_assert_eq!(service(&spec, &refs, &here()), service(&other, &turned, &here()));
    }

    #[test]
    fn plans_satisfy_their_invariants(slices in slices(), internal: bool, external: bool) {
        let spec = spec(internal, external);
        let refs: Vec<_> = slices.iter().collect();
        for plan in service(&spec, &refs, &here()).ports {
            let keys: Vec<_> = plan.endpoints.iter().map(|e| (e.ip, e.port)).collect();
            let distinct: BTreeSet<_> = keys.iter().copied().collect();
            prop_assert_eq!(&keys, &distinct.into_iter().collect::<Vec<_>>());
            prop_assert!(plan.endpoints.iter().all(|e| !e.local || e.on_this_node));
            let in_a_set = plan.endpoints.iter().any(|e| e.cluster || e.local);
            prop_assert!(!in_a_set || plan.anywhere);
            prop_assert!(internal || external || plan.endpoints.iter().all(|e| !e.local));
            let checks = plan.frontends.iter().any(|f| f.checks_sources);
            prop_assert_eq!(checks, !plan.sources.is_empty());
        }
    }
}
