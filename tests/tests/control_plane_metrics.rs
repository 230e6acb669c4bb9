//! Dashboards of kube-proxy find the same names and types here: compared with what a real kube-proxy
//! serves beside us, in both of its modes. Each absence has its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::cluster::{Cluster, until_answered_by};
use lb_tests::control_plane::kube_proxy::{KubeProxy, Mode, Options};
use lb_tests::topology::Shape;
use lb_tests::wait::wait_until;

const SOON: Duration = Duration::from_secs(30);

/// Shown only after a transaction failed.
const ON_FAILURE: &str = "kubeproxy_sync_proxy_rules_nftables_*";

/// Names of kube-proxy that the agent does not serve, and why. A star stands for any end.
const ABSENT: &[(&str, &str)] = &[
    ("go_*", "the agent is not written in Go"),
    ("aggregator_*", "of the API server, linked into kube-proxy and never counted there"),
    ("apiserver_*", "of the API server, linked into kube-proxy and never counted there"),
    ("cardinality_enforcement_unexpected_categorizations_total", "of the Go metrics library"),
    ("disabled_metrics_total", "of the Go metrics library"),
    ("hidden_metrics_total", "of the Go metrics library"),
    ("registered_metrics_total", "of the Go metrics library"),
    ("kubernetes_feature_enabled", "the agent has no feature gates"),
    (
        "kubeproxy_conntrack_reconciler_*",
        "no conntrack entries: flows are the agent's own, see lb_flows_swept",
    ),
    ("kubeproxy_iptables_*", "no iptables rules"),
    ("kubeproxy_sync_proxy_rules_iptables_*", "no iptables rules"),
    (ON_FAILURE, "no nftables rules: see lb_map_failures"),
    ("process_max_fds", "a limit, not a use: the five values that dashboards ask for are served"),
    ("process_virtual_memory_max_bytes", "a limit, not a use"),
    ("process_network_*", "of the whole namespace, not of the process: the node's own business"),
    ("rest_client_exec_plugin_*", "the agent keeps no account of credential plugins"),
    (
        "rest_client_rate_limiter_duration_seconds",
        "the agent's client is not limited: it only watches",
    ),
    ("rest_client_request_size_bytes", "watches and small Events: nothing to size"),
    ("rest_client_response_size_bytes", "watches have no end to measure at"),
    ("rest_client_transport_*", "of the Go client's cache of connections"),
];

#[test]
fn metrics_have_the_names_and_types_of_kube_proxy_or_a_reason() -> Result<()> {
    let cluster = Cluster::start(Shape::Routed)?;
    let rig = cluster.rig();
    let web = cluster.publish("web", false)?;
    cluster.endpoints(&web, &[rig.pod(1, 1)?])?;
    for (from, question) in cluster.askers(&web)? {
        until_answered_by(from, question, &["pod-b2"])?;
    }
    let (status, _) = rig.agent(0)?.health("/healthz")?;
    ensure!(status == 200, "/healthz: {status}");
    let (status, _) = rig.agent(0)?.health("/livez")?;
    ensure!(status == 200, "/livez: {status}");
    let ours = types(&rig.agent(0)?.metrics_text()?);
    let kubeconfig = cluster.control_plane().kubeconfig();
    let (mut wrong, mut alike, mut absent) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for mode in [Mode::Nftables, Mode::Iptables] {
        // Where no agent has its ports; on a machine of its own, which nobody's packets cross.
        let netns = rig.topology().fabric().name();
        let options = Options::new(netns, mode, &kubeconfig, rig.node(0)?.name());
        let kube_proxy = KubeProxy::start(&options)?;
        // Vectors without a value are not shown: after its first rewrite they have one.
        let theirs = wait_until(SOON, "kube-proxy programs something", || {
            let theirs = types(&kube_proxy.metrics().ok()?);
            theirs.contains_key("kubeproxy_sync_proxy_rules_duration_seconds").then_some(theirs)
        })?;
        for (name, kind) in theirs {
            match (ours.get(&name), reason(&name)) {
                (Some(our_kind), None) if *our_kind == kind => drop(alike.insert(name)),
                (None, Some(reason)) => drop(absent.insert(reason)),
                (found, reason) => {
                    wrong
                        .push(format!("{mode:?} {name} {kind}: ours {found:?}, reason {reason:?}"));
                }
            }
        }
    }
    // Every one of kube-proxy's own that has a meaning here, and the common ones.
    ensure!(alike.len() >= 18, "only {alike:?} are compared");
    let seen =
        |(pattern, reason): &&(&str, &str)| absent.contains(reason) || *pattern == ON_FAILURE;
    for (pattern, reason) in ABSENT.iter().filter(|row| !seen(row)) {
        wrong.push(format!("{pattern}: kube-proxy serves no such name ({reason})"));
    }
    for name in ours.keys().filter(|name| reason(name).is_some()) {
        wrong.push(format!("{name} is served, and a reason says why it is not"));
    }
    ensure!(wrong.is_empty(), "other than kube-proxy's:\n{}", wrong.join("\n"));
    Ok(())
}

fn reason(name: &str) -> Option<&'static str> {
    let matches = |pattern: &str| match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == pattern,
    };
    ABSENT.iter().find(|(pattern, _)| matches(pattern)).map(|(_, reason)| *reason)
}

/// Types by name as samples carry it. OpenMetrics, our format, declares a counter without its `_total`.
fn types(text: &str) -> BTreeMap<String, String> {
    let declared = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    declared
        .filter_map(|line| line.split_once(' '))
        .map(|(name, kind)| {
            let is_bare = kind == "counter" && !name.ends_with("_total");
            let name = if is_bare { format!("{name}_total") } else { name.to_owned() };
            (name, kind.to_owned())
        })
        .collect()
}
