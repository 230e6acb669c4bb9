//! The steps of `docs/install.md`, from the real kube-proxy to the agent and back, while clients ask without pause.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::{Agent, Source};
use lb_tests::cluster::{Cluster, Published};
use lb_tests::control_plane::kube_proxy::{KubeProxy, Mode, Options};
use lb_tests::rig::{matrix, servers};
use lb_tests::topology::address::CLUSTER_CIDR;
use lb_tests::topology::{Member, Node, Shape};
use lb_tests::traffic::{Ask, Load, PAUSE};
use lb_tests::wait::{wait_until, wait_until_ok};

/// How long kube-proxy may take until its rules stand.
const SOON: Duration = Duration::from_mins(1);
/// Questions on their way at the moment of a change, of each client: kube-proxy's connections are its own.
const IN_FLIGHT: u64 = 2;
/// Changes of who translates: to the agent, away from old rules, to kube-proxy's rules, away from the programs.
const CHANGES: u64 = 4;
/// Milliseconds after which a question is lost: some may be, each of them alone. Long enough for a SYN to be sent again.
const LOST: u64 = 2_000;

#[test]
fn nftables_mode_is_taken_over_and_given_back() -> Result<()> {
    taken_over_and_given_back(Mode::Nftables)
}

#[test]
fn iptables_mode_is_taken_over_and_given_back() -> Result<()> {
    taken_over_and_given_back(Mode::Iptables)
}

fn taken_over_and_given_back(mode: Mode) -> Result<()> {
    let cluster = Cluster::without_agents(Shape::Routed)?;
    let (rig, kubeconfig) = (cluster.rig(), cluster.control_plane().kubeconfig());
    let nodes = rig.topology().nodes();
    let web = cluster.publish("web", false)?;
    cluster.endpoints(&web, &[rig.pod(1, 1)?])?;
    let start = |node: &Node| {
        KubeProxy::start(&Options {
            cluster_cidr: Some(CLUSTER_CIDR),
            min_sync_period: Duration::from_millis(100),
            ..Options::new(node.netns().name(), mode, &kubeconfig, node.name())
        })
    };
    let proxies: Vec<KubeProxy> = nodes.iter().map(start).collect::<Result<_>>()?;
    cluster.until_answered_by(&web, &["pod-b2"])?;
    let loads = loads(&cluster, &web)?;

    // Step 2: kube-proxy goes, its rules stay. Step 3: the agent comes. Step 4: the rules go.
    drop(proxies);
    let source = Source::Kubeconfig(&kubeconfig);
    let mut agents: Vec<Agent> =
        nodes.iter().map(|node| Agent::start(node, source, &[])).collect::<Result<_>>()?;
    for node in nodes {
        remove_rules(node, mode)?;
    }
    all_are_answered(&cluster, &web).context("with the agent alone")?;
    cluster.endpoints(&web, &[rig.pod(0, 1)?])?;
    cluster.until_answered_by(&web, &["pod-a2"])?;

    // And back: programs serve until kube-proxy's rules are there again.
    agents.iter_mut().try_for_each(Agent::stop)?;
    let proxies: Vec<KubeProxy> = nodes.iter().map(start).collect::<Result<_>>()?;
    for node in nodes {
        until_rules_are_there(node, mode, &web)?;
    }
    for agent in &agents {
        let said = agent.command(&["cleanup"])?;
        ensure!(said.contains("removed"), "{said}");
    }
    all_are_answered(&cluster, &web).context("with kube-proxy alone again")?;
    cluster.endpoints(&web, &[rig.pod(1, 1)?])?;
    cluster.until_answered_by(&web, &["pod-b2"])?;
    for (from, question, load) in loads {
        let what = format!("{} asks {} by {}", from.name(), question.to, question.protocol);
        wait_until(SOON, &what, || (load.so_far().ok()?.answered() > 100).then_some(()))?;
        let tally = load.finish()?;
        let is_well = tally.failed() <= IN_FLIGHT * CHANGES && tally.lost_in_a_row <= 1;
        ensure!(is_well, "{what}: {tally:?}");
    }
    drop(proxies);
    Ok(())
}

/// Those who ask without pause, through new sockets: a pod and a host the `ClusterIP`, the client outside a `NodePort`.
fn loads<'a>(cluster: &'a Cluster, web: &Published) -> Result<Vec<(&'a Member, Ask, Load<'a>)>> {
    let rig = cluster.rig();
    let mut loads = Vec::new();
    for (family, protocol) in matrix() {
        let node_port = web.node_port(rig.node(0)?, family, protocol)?;
        let askers: [(&Member, _); 3] = [
            (rig.pod(0, 0)?, web.cluster_ip(family)),
            (rig.node(0)?, web.cluster_ip(family)),
            (rig.client(), node_port),
        ];
        for (from, to) in askers {
            let question = Ask::new(protocol, to).within(LOST);
            loads.push((from, question, from.peer().load(question, false, PAUSE)?));
        }
    }
    Ok(loads)
}

fn all_are_answered(cluster: &Cluster, web: &Published) -> Result<()> {
    for (from, question) in cluster.askers(web)? {
        drop(servers(from, question, 10)?);
    }
    Ok(())
}

/// kube-proxy writes all rules of a family at once.
fn until_rules_are_there(node: &Node, mode: Mode, web: &Published) -> Result<()> {
    let list = match mode {
        Mode::Nftables => "nft list ruleset",
        Mode::Iptables => "iptables-save; ip6tables-save",
    };
    wait_until_ok(SOON, "kube-proxy's rules are there", || {
        let rules = node.netns().tool("sh", &["-c", list])?;
        for (family, _) in matrix() {
            let ip = web.cluster_ip(family).ip();
            ensure!(rules.contains(&ip.to_string()), "{ip} is not in:\n{rules}");
        }
        Ok(())
    })
}

/// As `docs/install.md` says it.
fn remove_rules(node: &Node, mode: Mode) -> Result<()> {
    let commands: &[&str] = match mode {
        Mode::Nftables => &["nft delete table ip kube-proxy", "nft delete table ip6 kube-proxy"],
        Mode::Iptables => &[
            "iptables-save | grep -v KUBE | iptables-restore",
            "ip6tables-save | grep -v KUBE | ip6tables-restore",
        ],
    };
    for command in commands {
        drop(node.netns().tool("sh", &["-c", command])?);
    }
    Ok(())
}
