//! The steps of `docs/install.md`, from the real kube-proxy to the agent and back, while clients ask without pause, and while
//! connections stay open.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::{Agent, Source};
use lb_tests::campaign;
use lb_tests::cluster::{Cluster, Published};
use lb_tests::control_plane::kube_proxy::{KubeProxy, Mode, Options};
use lb_tests::rig::{matrix, servers};
use lb_tests::topology::address::CLUSTER_CIDR;
use lb_tests::topology::{Member, Node, Shape};
use lb_tests::traffic::{Ask, Kept, Load, PAUSE, Protocol};
use lb_tests::wait::{wait_until, wait_until_ok};

/// How long kube-proxy may take until its rules stand.
const SOON: Duration = Duration::from_mins(1);
/// Questions on their way at the moment of a change, of each client: kube-proxy's connections are its own.
const IN_FLIGHT: u64 = 2;
/// Changes of who translates: to the agent, away from old rules, to kube-proxy's rules, away from the programs.
const CHANGES: u64 = 4;
/// Milliseconds after which a question is lost: some may be, each of them alone. Long enough for a SYN to be sent again.
const LOST: u64 = 2_000;

/// Modes of kube-proxy; in a run that is no campaign, the two tests have one each.
const MODES: [Mode; 2] = [Mode::Nftables, Mode::Iptables];

#[test]
fn kube_proxy_is_taken_over_and_given_back() -> Result<()> {
    let modes = campaign::size(&MODES[1..], &MODES);
    modes
        .iter()
        .try_for_each(|mode| taken_over_and_given_back(*mode).with_context(|| format!("{mode:?}")))
}

fn taken_over_and_given_back(mode: Mode) -> Result<()> {
    let cluster = Cluster::without_agents(Shape::Routed)?;
    let (rig, kubeconfig) = (cluster.rig(), cluster.control_plane().kubeconfig());
    let nodes = rig.topology().nodes();
    let web = cluster.publish("web", false)?;
    cluster.endpoints(&web, &[rig.pod(1, 1)?])?;
    let start = |node: &Node| proxy(node, mode, &kubeconfig);
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

/// Connections and sockets that stay open, through kube-proxy's rules, the take-over and the removal of the rules.
fn connections_go_on(mode: Mode) -> Result<()> {
    let cluster = Cluster::without_agents(Shape::Routed)?;
    let (rig, kubeconfig) = (cluster.rig(), cluster.control_plane().kubeconfig());
    let nodes = rig.topology().nodes();
    // Questions of sockets that do not stay are forgotten before the others end; one that stays is a stream by then.
    for node in nodes {
        node.netns().sysctl("net.netfilter.nf_conntrack_udp_timeout", "10")?;
    }
    let web = cluster.publish("web", false)?;
    cluster.endpoints(&web, &[rig.pod(0, 1)?, rig.pod(1, 1)?])?;
    let proxies: Vec<KubeProxy> =
        nodes.iter().map(|node| proxy(node, mode, &kubeconfig)).collect::<Result<_>>()?;
    cluster.until_answered_by(&web, &["pod-a2", "pod-b2"])?;
    let kept = keep(&cluster, &web, |_| true)?;
    all_go_on(&kept, "through kube-proxy")?;

    drop(proxies);
    all_go_on(&kept, "without kube-proxy")?;
    let source = Source::Kubeconfig(&kubeconfig);
    // The same, of questions that the agent serves: the way back waits for their ends.
    let start = |node| Agent::start(node, source, &["--conntrack-udp-timeout=5s"]);
    let agents: Vec<Agent> = nodes.iter().map(start).collect::<Result<_>>()?;
    all_go_on(&kept, "beside the agent")?;
    for agent in &agents {
        let (code, said) = agent.exit_code(&["takeover", "--remove-rules"])?;
        ensure!(code == 1, "connections are left, and it ended with {code}: {said}");
        let status = agent.exit_said(&["status"])?;
        ensure!(
            status.contains("connections still translated by netfilter; kube-proxy's rules: none"),
            "{status}"
        );
    }
    all_go_on(&kept, "without rules")?;
    all_are_answered(&cluster, &web).context("new ones")?;
    all_go_on(&kept, "beside new ones")?;
    let passed = agents.iter().map(|agent| agent.metric(&["take_over"])).sum::<Result<f64>>()?;
    ensure!(passed > 0.0, "no packet was left to netfilter: the agents served all");

    // Silent sockets are forgotten soon.
    for node in nodes {
        for name in ["udp_timeout", "udp_timeout_stream"] {
            node.netns().sysctl(&format!("net.netfilter.nf_conntrack_{name}"), "2")?;
        }
    }
    all_go_on(&kept, "for the last time")?;
    drop(kept);
    for (agent, node) in agents.iter().zip(nodes) {
        let (code, said) = agent.exit_code(&["takeover", "--wait", "--timeout", "120"])?;
        ensure!(code == 0, "{} ended with {code}: {said}", agent.command(&["takeover"])?);
        wait_until_ok(SOON, "the take-over is over", || {
            let status = agent.exit_said(&["status"])?;
            ensure!(!status.contains("Take-over"), "{status}");
            let tables = node.netns().tool("nft", &["list", "tables"])?;
            ensure!(!tables.contains("lb-agent"), "{tables}");
            Ok(())
        })?;
    }
    all_are_answered(&cluster, &web).context("with the agent alone")?;
    given_back(&cluster, &web, mode, agents)
}

/// The way back: connections through the agents' programs go on while kube-proxy serves what begins, and the programs go with the
/// last of them.
fn given_back(
    cluster: &Cluster,
    web: &Published,
    mode: Mode,
    mut agents: Vec<Agent>,
) -> Result<()> {
    let (nodes, kubeconfig) =
        (cluster.rig().topology().nodes(), cluster.control_plane().kubeconfig());
    let kept = keep(cluster, web, |protocol| protocol == Protocol::Tcp)?;
    agents.iter_mut().try_for_each(Agent::stop)?;
    let _proxies: Vec<KubeProxy> =
        nodes.iter().map(|node| proxy(node, mode, &kubeconfig)).collect::<Result<_>>()?;
    for node in nodes {
        until_rules_are_there(node, mode, web)?;
    }
    thread::scope(|scope| {
        let drain = |agent| scope.spawn(move || Agent::command(agent, &["cleanup", "--drain"]));
        let drains: Vec<_> = agents.iter().map(drain).collect();
        for agent in &agents {
            wait_until_ok(SOON, "nothing begins", || {
                let status = agent.exit_said(&["status"])?;
                ensure!(status.contains("Draining"), "{status}");
                Ok(())
            })?;
        }
        let went_on = all_go_on(&kept, "while draining")
            .and_then(|()| all_are_answered(cluster, web).context("new ones while draining"));
        let are_waited_for = !drains.iter().any(ScopedJoinHandle::is_finished);
        drop(kept);
        went_on?;
        ensure!(are_waited_for, "the programs went before the last connection");
        for drain in drains {
            let said = drain.join().ok().context("a command")??;
            ensure!(said.contains("0 flows left") && said.contains("removed"), "{said}");
        }
        all_are_answered(cluster, web).context("with kube-proxy alone again")
    })
}

#[test]
fn connections_of_kube_proxy_go_on() -> Result<()> {
    let modes = campaign::size(&MODES[..1], &MODES);
    modes.iter().try_for_each(|mode| connections_go_on(*mode).with_context(|| format!("{mode:?}")))
}

/// Sockets that stay open, of each direction: to the agent, and back.
fn kept_sockets(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Tcp => campaign::size(200, 8_000),
        Protocol::Udp => campaign::size(50, 2_000),
    }
}

/// A socket that stays open, who has it, and who answered it first.
type Lasting<'a> = (String, Protocol, Kept<'a>, String);

/// Opens sockets of everybody who asks by a transport that is meant: [`kept_sockets`] of it in all.
fn keep<'a>(
    cluster: &'a Cluster,
    web: &Published,
    is_meant: impl Fn(Protocol) -> bool,
) -> Result<Vec<Lasting<'a>>> {
    let mut askers = cluster.askers(web)?;
    askers.retain(|(_, question)| is_meant(question.protocol));
    let askers_by = |protocol| askers.iter().filter(|(_, it)| it.protocol == protocol).count();
    let [by_tcp, by_udp] = Protocol::ALL.map(askers_by);
    let mut all = Vec::new();
    for (from, question) in askers {
        let what = format!("{} asks {} by {}", from.name(), question.to, question.protocol);
        let askers = if question.protocol == Protocol::Tcp { by_tcp } else { by_udp };
        for _ in 0..kept_sockets(question.protocol).div_ceil(askers) {
            let kept = from.peer().keep(question.within(LOST)).context(what.clone())?;
            let first = kept.ask().context(what.clone())?.server;
            all.push((what.clone(), question.protocol, kept, first));
        }
    }
    Ok(all)
}

/// Fails unless each is answered, a connection by whom it was answered before.
fn all_go_on(kept: &[Lasting<'_>], when: &str) -> Result<()> {
    let mut lost = BTreeMap::<String, u64>::new();
    for (what, protocol, kept, first) in kept {
        let how = match kept.ask() {
            Ok(answer) if answer.server == *first || *protocol == Protocol::Udp => continue,
            Ok(answer) => format!("by {}, not {first}", answer.server),
            Err(failure) => failure.to_string(),
        };
        *lost.entry(format!("{what}: {how}")).or_default() += 1;
    }
    ensure!(lost.is_empty(), "{when}, of {}: {lost:#?}", kept.len());
    Ok(())
}

fn proxy(node: &Node, mode: Mode, kubeconfig: &Path) -> Result<KubeProxy> {
    KubeProxy::start(&Options {
        cluster_cidr: Some(CLUSTER_CIDR),
        min_sync_period: Duration::from_millis(100),
        ..Options::new(node.netns().name(), mode, kubeconfig, node.name())
    })
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
