use lb_common::event::{DropReason, PassReason, Translation};

use super::*;

fn explanation() -> Explanation {
    Explanation {
        client: "pod at veth-a1".into(),
        frontend: Some("ClusterIP 10.96.0.10:80/TCP".into()),
        service: Some("default/web:http".into()),
        policy: Some("Cluster, 2 endpoints".into()),
        source_ranges: Some("any"),
        affinity: None,
        flow: Some("begins with this packet"),
        backend: Some("10.1.0.6:8080".into()),
        backend_is: Some("on this node"),
        source: Some("10.1.0.5:40000".into()),
        verdict: "translated new_flow".into(),
        meaning: Translation::NewFlow.meaning(),
        remedy: None,
        arrives: true,
    }
}

#[test]
fn each_fact_is_a_line() {
    insta::assert_snapshot!(explanation().print(Output::Table).expect("text"));
    assert_eq!(explanation().print(Output::Name).expect("text"), "10.1.0.6:8080\n");
}

#[test]
fn refusal_names_a_remedy() {
    let name = "shop/web:http".to_owned();
    for (verdict, words) in [
        (Verdict::Returned(Return::NoBackend), "kubectl -n shop get endpointslices"),
        (Verdict::Drop(DropReason::NoLocalBackend), "kubernetes.io/service-name=web"),
        (Verdict::Drop(DropReason::SourceNotAllowed), "loadBalancerSourceRanges"),
        (Verdict::Returned(Return::UnknownPort), "lb-agent lb list"),
        (Verdict::Pass(PassReason::NotOurs), "use another source port"),
    ] {
        let said = remedy(verdict, Some(&name), Some(Flags::default())).expect("a remedy");
        assert!(said.contains(words), "{said}");
    }
    let said = remedy(Verdict::Pass(PassReason::NotOurs), Some(&name), Some(Flags::HOST));
    assert!(said.expect("a remedy").contains("a process of this node listens"));
    let said = remedy(Verdict::Pass(PassReason::NotOurs), None, None).expect("a remedy");
    assert!(said.contains("use a frontend"), "{said}");
    assert_eq!(remedy(Verdict::Translated(Translation::NewFlow), None, None), None);
}
