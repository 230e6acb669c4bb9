//! The metrics that dashboards of kube-proxy use: their names and types are compared with those of a real kube-proxy
//! beside the agent, in both of its modes. Each missing metric has its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use lb_tests::agent::Agent;
use lb_tests::cluster::Cluster;
use lb_tests::control_plane::kube_proxy::{KubeProxy, Mode, Options};
use lb_tests::topology::Shape;
use lb_tests::wait::wait_until;
use serde_json::Value;

const SOON: Duration = Duration::from_mins(1);

/// The pattern of metrics that kube-proxy shows only after a failed transaction.
const ON_FAILURE: &str = "kubeproxy_sync_proxy_rules_nftables_*";

/// Metrics that kube-proxy shows only after a request for `/livez`, or after a change since its start. Their types are
/// taken from its source.
const LATER: [(&str, &str); 3] = [
    ("kubeproxy_network_programming_duration_seconds", "histogram"),
    ("kubeproxy_proxy_livez_total", "counter"),
    ("kubeproxy_sync_partial_proxy_rules_duration_seconds", "histogram"),
];

/// The documentation of metrics: names of kube-proxy that the agent serves, names that it does not serve with the
/// reasons (a star stands for any suffix), and the agent's own names.
const METRICS: &str = include_str!("../../docs/metrics.md");

#[test]
fn metrics_have_the_names_and_types_of_kube_proxy_or_a_reason() -> Result<()> {
    let cluster = Cluster::start(Shape::Routed)?;
    let rig = cluster.rig();
    // The controller reports the time of a change in whole seconds, and changes from before the start of an agent do
    // not count as delays.
    let second = || Timestamp::now().as_second();
    let began = second();
    wait_until(SOON, "a second that no agent began in", || (second() > began).then_some(()))?;
    let web = cluster.publish("web", true)?;
    cluster.pod_object("web", rig.pod(1, 1)?, true)?;
    cluster.until_answered_by(&web, &["pod-b2"])?;
    let (status, _) = rig.agent(0)?.health("/healthz")?;
    ensure!(status == 200, "/healthz: {status}");
    let (status, _) = rig.agent(0)?.health("/livez")?;
    ensure!(status == 200, "/livez: {status}");
    let ours = types(&rig.agent(0)?.metrics_text()?);
    let kubeconfig = cluster.control_plane().kubeconfig();
    let (mut wrong, mut alike, mut absent) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for mode in [Mode::Nftables, Mode::Iptables] {
        // kube-proxy runs in a namespace where no agent uses its ports, and which no packet of a Service crosses.
        let netns = rig.topology().fabric().name();
        let options = Options::new(netns, mode, &kubeconfig, rig.node(0)?.name());
        let kube_proxy = KubeProxy::start(&options)?;
        // Label vectors without a value are not shown. They have one after the first sync, so two equal reads in a row
        // show all names.
        let mut before = BTreeMap::new();
        let theirs = wait_until(SOON, "kube-proxy programs something", || {
            let theirs = types(&kube_proxy.metrics().ok()?);
            let has_all = theirs.contains_key("kubeproxy_sync_proxy_rules_duration_seconds");
            let is_same = theirs == before;
            before.clone_from(&theirs);
            (has_all && is_same).then_some(theirs)
        })?;
        pages_are_alike(rig.agent(0)?, &kube_proxy)?;
        for (name, kind) in theirs {
            match (ours.get(&name), reason(&name)) {
                (Some(our_kind), None) if *our_kind == kind => drop(alike.insert((name, kind))),
                (None, Some(reason)) => drop(absent.insert(reason)),
                (found, reason) => {
                    wrong
                        .push(format!("{mode:?} {name} {kind}: ours {found:?}, reason {reason:?}"));
                }
            }
        }
    }
    let later = LATER.map(|(name, kind)| (name.to_owned(), kind.to_owned()));
    alike.extend(later.into_iter().filter(|(name, kind)| ours.get(name) == Some(kind)));
    wrong.extend(differences("As kube-proxy", &alike));
    let own = ours.iter().filter(|(name, _)| name.starts_with("lb_"));
    let own = own.map(|(name, kind)| (name.clone(), kind.clone())).collect();
    wrong.extend(differences("The agent's own", &own));
    let seen = |(pattern, reason): &(&str, &str)| absent.contains(reason) || *pattern == ON_FAILURE;
    for (pattern, reason) in rows("Absent metrics").filter(|row| !seen(row)) {
        wrong.push(format!("{pattern}: kube-proxy serves no such name ({reason})"));
    }
    for name in ours.keys().filter(|name| reason(name).is_some()) {
        wrong.push(format!("{name} is served, and a reason says why it is not"));
    }
    ensure!(wrong.is_empty(), "other than kube-proxy's:\n{}", wrong.join("\n"));
    Ok(())
}

/// The other pages on port 10249 must have the same status and the same fields as those of kube-proxy.
fn pages_are_alike(ours: &Agent, theirs: &KubeProxy) -> Result<()> {
    let document = |kind: &str, version: &str| {
        format!("application/json;v={version};g=config.k8s.io;as={kind}")
    };
    for (path, accept) in [
        ("/healthz", String::new()),
        ("/healthz/ping", String::new()),
        ("/proxyMode", String::new()),
        ("/configz", String::new()),
        ("/metrics/slis", String::new()),
        ("/statusz", String::new()),
        ("/statusz", "*/*".to_owned()),
        ("/statusz", "application/json".to_owned()),
        ("/statusz", document("Statusz", "v1beta1")),
        ("/statusz", document("Statusz", "v1alpha1")),
        ("/statusz", document("Statusz", "v7")),
        ("/flagz", String::new()),
        ("/flagz", document("Flagz", "v1beta1")),
        ("/flagz", document("Statusz", "v1beta1")),
        ("/", String::new()),
        ("/nowhere", String::new()),
    ] {
        let (expected, theirs) = theirs.page(path, &accept)?;
        let (found, ours) = ours.page(path, &accept)?;
        ensure!(found == expected, "{path} as {accept:?}: {found}, not {expected} {theirs}");
        let (theirs, ours) = (shape(path, &theirs), shape(path, &ours));
        ensure!(
            expected != 200 || theirs == ours,
            "{path} as {accept:?}: {ours:?}, not {theirs:?}"
        );
    }
    Ok(())
}

/// The parts of a page that do not depend on the program that serves it.
fn shape(path: &str, page: &str) -> Vec<String> {
    // Entries that only a Go program has.
    const THEIRS: [&str; 4] = ["Go version", "Emulation version", "emulationVersion", "go_"];
    let is_common = |name: &String| !THEIRS.iter().any(|theirs| name.starts_with(theirs));
    let names: Vec<String> = match (path, serde_json::from_str::<Value>(page)) {
        // The group of kube-proxy's settings; the agent's page has a second group.
        ("/configz", Ok(all)) => vec![all["kubeproxy.config.k8s.io"]["kind"].to_string()],
        // The flags differ, so a flag that both have stands for all.
        ("/flagz", Ok(all)) => {
            vec![all["kind"].to_string(), all["flags"]["config"].is_string().to_string()]
        }
        (_, Ok(all)) => {
            all.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
        }
        ("/metrics/slis", Err(_)) => {
            types(page).into_iter().map(|(name, kind)| name + &kind).collect()
        }
        ("/flagz", Err(_)) => page.lines().skip(2).take(1).map(str::to_owned).collect(),
        ("/proxyMode", Err(_)) => Vec::new(),
        // kube-proxy uses random separators.
        (_, Err(_)) => page
            .lines()
            .skip_while(|line| line.is_empty() || line.ends_with('z'))
            .map(|line| line.split([':', '=']).next().unwrap_or_default().to_owned())
            .map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ").trim().to_owned())
            .collect(),
    };
    let mut names: Vec<String> =
        names.into_iter().filter(is_common).filter(|it| !it.is_empty()).collect();
    names.sort();
    names
}

/// The rows of the table below the heading with this prefix: the name, and the rest.
fn rows(heading: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let sections = METRICS.split("\n## ").filter(move |section| section.starts_with(heading));
    let lines = sections.flat_map(str::lines).filter_map(|line| line.strip_prefix("| `"));
    lines.filter_map(|line| line.strip_suffix(" |")?.split_once("` | "))
}

/// Names that only the table has, names that it lacks, and names without a description.
fn differences(heading: &str, found: &BTreeSet<(String, String)>) -> Vec<String> {
    let (mut documented, mut wrong) = (BTreeSet::new(), Vec::new());
    for (name, rest) in rows(heading) {
        let (kind, meaning) = rest.split_once(" | ").unwrap_or((rest, ""));
        if meaning.is_empty() {
            wrong.push(format!("{name}: docs/metrics.md does not say what it means"));
        }
        documented.insert((name.to_owned(), kind.to_owned()));
    }
    let other = found.symmetric_difference(&documented);
    wrong.extend(
        other.map(|(name, kind)| format!("{name} {kind}: in docs/metrics.md or served, not both")),
    );
    wrong
}

fn reason(name: &str) -> Option<&'static str> {
    let matches = |pattern: &str| match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin),
        None => name == pattern,
    };
    rows("Absent metrics").find(|(pattern, _)| matches(pattern)).map(|(_, reason)| reason)
}

/// The types by name as samples carry it. In OpenMetrics, which the agent serves, a counter is declared without
/// `_total`.
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
