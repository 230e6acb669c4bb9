//! Connections and UDP sockets that stay open, on the way to the agent and on the way back.

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, Transport, at};
use lb_tests::agent::Agent;
use lb_tests::campaign;
use lb_tests::cluster::{Cluster, Lasting, Published, Sizes};
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::rig::until;
use lb_tests::topology::{Family, Node, Shape};
use lb_tests::traffic::{Ask, Handmade, Protocol};
use lb_tests::wait::wait_until_ok;

use super::drain::{self, Drain};
use super::{SOON, all_are_answered, start_agents, start_proxies};

/// A port of the node that the kernel assigns to no socket.
const ANSWERED: u16 = 61_999;

/// Tests connections and sockets that stay open through kube-proxy's rules, the take-over, and the removal of the
/// rules.
pub(crate) fn go_on(mode: Mode) -> Result<()> {
    let cluster = Cluster::without_agents(Shape::Routed)?;
    let (rig, kubeconfig) = (cluster.rig(), cluster.control_plane().kubeconfig());
    let nodes = rig.topology().nodes();
    // Netfilter forgets UDP flows of short-lived sockets at once, and those of kept sockets after they are closed.
    datagrams_are_remembered(nodes, 2)?;
    let web = cluster.publish("web", false)?;
    cluster.endpoints(&web, &[rig.pod(0, 1)?, rig.pod(1, 1)?])?;
    let proxies = start_proxies(nodes, mode, &kubeconfig)?;
    cluster.until_answered_by(&web, &["pod-a2", "pod-b2"])?;
    datagrams_are_remembered(nodes, 300)?;
    let kept = Lasting::open(&cluster, &web, sizes_there)?;
    kept.go_on("through kube-proxy")?;

    drop(proxies);
    kept.go_on("without kube-proxy")?;
    let agents = start_agents(nodes, &kubeconfig)?;
    kept.go_on("beside the agent")?;
    for agent in &agents {
        let (code, said) = agent.exit_code(&["takeover", "--remove-rules"])?;
        ensure!(code == 1, "connections are left, and takeover exited with {code}: {said}");
        let status = agent.exit_said(&["status"])?;
        ensure!(
            status.contains("connections still translated by netfilter; kube-proxy's rules: none"),
            "{status}"
        );
    }
    kept.go_on("without rules")?;
    all_are_answered(&cluster, &web).context("new ones")?;
    kept.go_on("beside new ones")?;
    let passed = agents.iter().map(|agent| agent.metric(&["take_over"])).sum::<Result<f64>>()?;
    ensure!(passed > 0.0, "no packet was left to netfilter: the agents served all");

    datagrams_are_remembered(nodes, 2)?;
    kept.go_on("for the last time")?;
    report(&kept, mode, "to the agent")?;
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

/// Writes the figures: the number of sockets, of answered questions, and of lost sockets.
fn report(kept: &Lasting<'_>, mode: Mode, direction: &str) -> Result<()> {
    let what = |what| format!("{mode:?}, {direction}: {what}");
    campaign::figure(&what("open connections and UDP sockets"), kept.count()?, "sockets");
    campaign::figure(&what("questions answered meanwhile"), kept.unharmed()?, "questions");
    campaign::figure(&what("reset or lost"), kept.lost()?, "sockets");
    Ok(())
}

/// Sets the time for which netfilter remembers datagrams that arrive from now on, in seconds.
fn datagrams_are_remembered(nodes: &[Node], seconds: u32) -> Result<()> {
    nodes.iter().try_for_each(|node| node.netns().remember_datagrams(seconds))
}

/// The way back: connections through the agents' programs continue while kube-proxy serves new ones. The programs are
/// removed after the last of these connections.
fn given_back(
    cluster: &Cluster,
    web: &Published,
    mode: Mode,
    mut agents: Vec<Agent>,
) -> Result<()> {
    let (nodes, kubeconfig) =
        (cluster.rig().topology().nodes(), cluster.control_plane().kubeconfig());
    datagrams_are_remembered(nodes, 300)?;
    let kept = Lasting::open(cluster, web, sizes_back)?;
    agents.iter_mut().try_for_each(Agent::stop)?;
    let mut drains = drain::start_all(&agents, nodes)?;
    let _proxies = start_proxies(nodes, mode, &kubeconfig)?;
    for (node, agent) in nodes.iter().zip(&agents) {
        mode.until_rules_are_there(node.netns(), web)?;
        wait_until_ok(SOON, "nothing begins", || {
            let status = agent.exit_said(&["status"])?;
            ensure!(status.contains("Draining"), "{status}");
            Ok(())
        })?;
    }
    answer_is_seen_first(cluster, web)?;
    kept.go_on("while draining")?;
    all_are_answered(cluster, web).context("new ones while draining")?;
    port_is_free(cluster, web)?;
    report(&kept, mode, "back")?;
    ensure!(
        drains.iter_mut().all(Drain::is_under_way),
        "the programs were removed before the last flow ended"
    );
    drop(kept);
    drains.into_iter().try_for_each(Drain::end)?;
    all_are_answered(cluster, web).context("with kube-proxy alone again")
}

/// The numbers of sockets that stay open through the take-over: half of them are silent during changes.
fn sizes_there(protocol: Protocol) -> Sizes {
    let (silent, asking) = match protocol {
        Protocol::Tcp => (campaign::size(200, 5_000), campaign::size(200, 5_000)),
        Protocol::Udp => (campaign::size(50, 500), campaign::size(50, 500)),
    };
    Sizes { silent, asking, hosts_begin_again: false }
}

/// The numbers of sockets on the way back. The flow of a silent UDP socket would expire before the last step. Datagrams
/// of node processes meet kube-proxy's rules before our programs, and kube-proxy makes netfilter forget flows that no
/// rule has translated: these begin again when it returns, and none is lost.
fn sizes_back(protocol: Protocol) -> Sizes {
    match protocol {
        Protocol::Tcp => sizes_there(protocol),
        Protocol::Udp => {
            Sizes { silent: 0, asking: campaign::size(50, 1_000), hosts_begin_again: true }
        }
    }
}

/// Creates the conntrack entry that netfilter makes if it sees an answer to a node process before any question. The
/// answer is forged: it comes from another machine and has the frontend as its source.
fn answer_is_seen_first(cluster: &Cluster, web: &Published) -> Result<()> {
    let (node, client) = (cluster.rig().node(0)?, cluster.rig().client());
    for family in Family::ALL {
        let [to, own] = [node, client].map(|it| it.addresses().socket(family, ANSWERED));
        let hand = Handmade::open(client, own)?;
        let [from, at_node] = [web.cluster_ip(family), to].map(|end| at(&end.to_string()));
        hand.send(&Datagram::new(from, at_node, Transport::Udp(true)), to)?;
    }
    Ok(())
}

/// Fails unless a new socket of the node with the port of that answer soon reaches the Service.
fn port_is_free(cluster: &Cluster, web: &Published) -> Result<()> {
    let node = cluster.rig().node(0)?;
    Family::ALL.into_iter().try_for_each(|family| {
        let question = Ask::udp(web.cluster_ip(family)).from_port(ANSWERED);
        until(node, question, Result::is_ok).context("a port that had an answer")
    })
}
