//! Connections to the real API server that break: resets while no new connection can be made, dropped packets, a node
//! address that is removed, a middlebox that has forgotten the connections, a server that is stopped (SIGSTOP).
//!
//! Agents see changes soon afterwards, and no question stays unanswered meanwhile.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_tests::agent::{Agent, Source};
use lb_tests::campaign;
use lb_tests::cluster::{Cluster, Outage, Published, Traffic, is_soon, until_answered_by};
use lb_tests::control_plane;
use lb_tests::control_plane::kube_proxy::{KubeProxy, Mode, Options};
use lb_tests::rig::answered_by;
use lb_tests::topology::{Family, Node, Segment, Shape};
use lb_tests::traffic::{Ask, PAUSE, Protocol};
use lb_tests::wait::{self, wait_until};

/// The deadline for an agent to notice that it receives no changes.
const NOTICE: Duration = Duration::from_mins(2);
/// The deadline for a change after the node's address changed: the watch needs five seconds, the rest allows for a busy
/// machine.
const SOON: Duration = Duration::from_secs(15);
/// How long the server is stopped, in the short and in the long form: longer than the pauses between requests can
/// become (three seconds).
const HELD: [Duration; 2] = [Duration::from_secs(6), Duration::from_secs(15)];
/// The number of failed requests after which pauses have grown: four kinds of objects, five doublings.
const MANY: f64 = 20.0;
/// The timeout in milliseconds of a question that is repeated.
const IMPATIENT: u64 = 500;
const PORT: &str = "6443";

#[test]
fn change_is_seen_soon_after_each_kind_of_outage() -> Result<()> {
    let cluster = Cluster::shared(Shape::Routed)?;
    let [web, other] = cluster.publish_pair()?;
    let (rig, control_plane) = (cluster.rig(), cluster.control_plane());
    let traffic = Traffic::start(rig, &web)?;
    let nodes = [rig.node(0)?, rig.node(1)?];
    let pods = [rig.pod(0, 1)?, rig.pod(1, 1)?];
    let over = |name| Outage { name, ended: Instant::now(), control_plane, rig };
    let change = || cluster.endpoints(&other, &pods[..1]);
    // First kind of outage: connections are reset, and no new one can be made.
    let agent = rig.agent(0)?;
    let failed = || agent.metric(&["rest_client_requests_total{", "code=\"<error>\""]);
    let before = failed()?;
    let rules = format!("tcp dport {PORT} reject with tcp reset");
    nodes.into_iter().try_for_each(|node| filter(node, [&rules, ""]))?;
    wait_until(NOTICE, "pauses have grown", || (failed().ok()? > before + MANY).then_some(()))?;
    let is_stale = || (agent.metric(&["lb_source_stale_since_seconds"]).ok()? > 0.0).then_some(());
    wait_until(NOTICE, "the view is stale", is_stale)?;
    change()?;
    nodes.into_iter().try_for_each(unfilter)?;
    over("connections were reset").change_is_seen_soon(&other, pods)?;
    // Second kind: a middlebox has forgotten the connections and drops their packets; new connections work.
    for node in nodes {
        let ports = connections(node)?.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
        ensure!(!ports.is_empty(), "no connection to the server");
        let out = format!("tcp dport {PORT} tcp sport {{ {ports} }} drop");
        filter(node, [&out, &format!("tcp sport {PORT} tcp dport {{ {ports} }} drop")])?;
    }
    let forgotten = over("connections were forgotten");
    change()?;
    forgotten.change_is_seen_soon(&other, pods)?;
    nodes.into_iter().try_for_each(unfilter)?;
    // Third kind: the server process is stopped, while its kernel still acknowledges what it receives.
    control_plane.pause()?;
    let [short, long] = HELD;
    wait::pass(campaign::size(short, long));
    control_plane.resume()?;
    let held = over("the server was stopped");
    change()?;
    held.change_is_seen_soon(&other, pods)?;
    traffic.finish()?;
    cluster.give_back()
}

/// All packets to and from the server are dropped, also those of new connections. The other node has kube-proxy, which
/// uses the same server, for comparison.
#[test]
fn change_is_seen_soon_after_packets_were_dropped_for_long() -> Result<()> {
    let cluster = Cluster::shared_without_agents(Shape::Routed)?;
    let (rig, kubeconfig) = (cluster.rig(), cluster.control_plane().kubeconfig());
    let nodes = [rig.node(0)?, rig.node(1)?];
    let mut agent = Agent::start(nodes[0], Source::Kubeconfig(&kubeconfig), &[])?;
    let kube_proxy = KubeProxy::start(&Options::new(
        nodes[1].netns().name(),
        Mode::Nftables,
        &kubeconfig,
        nodes[1].name(),
    ))?;
    let [web, other] = cluster.publish_pair()?;
    cluster.endpoints(&other, &[rig.pod(0, 1)?])?;
    cluster.until_answered_by(&other, &["pod-a2"])?;
    let (asker, web) = (rig.pod(0, 0)?.peer(), web.cluster_ip(Family::V4));
    let loads = Protocol::ALL.map(|protocol| asker.load(Ask::new(protocol, web), true, PAUSE));
    let failed = || agent.metric(&["rest_client_requests_total{", "code=\"<error>\""]);
    let before = failed()?;
    let rules = [format!("tcp dport {PORT} drop"), format!("tcp sport {PORT} drop")];
    let began = Instant::now();
    for node in nodes {
        filter(node, rules.each_ref().map(String::as_str))?;
    }
    wait_until(NOTICE, "pauses have grown", || (failed().ok()? > before + MANY).then_some(()))?;
    let long = campaign::size(Duration::ZERO, Duration::from_mins(1));
    wait::pass(long.saturating_sub(began.elapsed()));
    cluster.endpoints(&other, &[rig.pod(1, 1)?])?;
    nodes.into_iter().try_for_each(unfilter)?;
    let [took, of_kube_proxy] = both_follow(&cluster, &other, "pod-b2")?;
    cluster.endpoints(&other, &[rig.pod(0, 1)?])?;
    let [usual, _] = both_follow(&cluster, &other, "pod-a2")?;
    campaign::figure("the same of kube-proxy", format!("{:.1}", of_kube_proxy.as_secs_f64()), "s");
    is_soon("packets were dropped", took, usual)?;
    for load in loads {
        drop(load?.finish_without_loss()?);
    }
    agent.ensure_running()?;
    agent.clear()?;
    drop(kube_proxy);
    Mode::Nftables.remove_rules(nodes[1].netns())?;
    cluster.give_back()
}

/// Waits until packets of both nodes follow a change, and returns the time for each node.
fn both_follow(cluster: &Cluster, service: &Published, server: &str) -> Result<[Duration; 2]> {
    let began = Instant::now();
    let question = Ask::tcp(service.cluster_ip(Family::V4)).within(IMPATIENT);
    let pods = [cluster.rig().pod(0, 0)?, cluster.rig().pod(1, 0)?];
    let (is_reported, mut seen) = (answered_by(server), [None; 2]);
    wait_until(NOTICE, "both nodes follow the change", || {
        for (seen, pod) in seen.iter_mut().zip(pods) {
            if seen.is_none() && is_reported(&pod.peer().ask(question)) {
                *seen = Some(began.elapsed());
            }
        }
        let [ours, other] = seen;
        Some([ours?, other?])
    })
}

/// Filters packets that leave (`out`) and packets that arrive (`into`).
fn filter(node: &Node, [out, into]: [&str; 2]) -> Result<()> {
    let rules = format!(
        "table inet outage {{ chain output {{ type filter hook output priority 0; {out}; }}; \
         chain input {{ type filter hook input priority 0; {into}; }}; }}"
    );
    node.netns().tool_fed("nft", &["-f", "-"], &rules).map(drop)
}

fn unfilter(node: &Node) -> Result<()> {
    node.netns().tool("nft", &["delete", "table", "inet", "outage"]).map(drop)
}

/// The local ports of a node's IPv4 connections to the API server.
fn connections(node: &Node) -> Result<Vec<u16>> {
    let text = node.netns().proc_net("tcp")?;
    let remote = format!(":{:04X}", PORT.parse::<u16>()?);
    let rows = text.lines().skip(1).map(|line| line.split_whitespace().skip(1).take(3));
    let ports = rows.filter_map(|mut row| {
        let (local, to, state) = (row.next()?, row.next()?, row.next()?);
        let port = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
        (to.ends_with(&remote) && state == "01").then_some(port)
    });
    Ok(ports.collect())
}

/// The node gets another address, as with a new DHCP lease: the watches use connections of the removed address, and no
/// event ends these connections.
#[test]
fn change_is_seen_soon_after_the_address_of_the_node_is_another() -> Result<()> {
    // The test does not give the cluster back, because it changes the address of a node.
    let cluster = Cluster::shared(Shape::Routed)?;
    let [_, other] = cluster.publish_pair()?;
    let node = cluster.rig().node(0)?;
    let (old, new) = (node.addresses().v4, Segment::First.host(31)?.v4);
    let gateway = Segment::First.gateway()?.v4;
    let (addresses, ranges) =
        ([new.to_string(), node.addresses().v6.to_string()], node.pod_ranges());
    node.netns().ip(&format!(
        "address delete {old}/24 dev eth0
         address add {new}/24 dev eth0
         route replace default via {gateway}"
    ))?;
    let began = Instant::now();
    // The kubelet would update the Node object.
    cluster.control_plane().node(&control_plane::Node {
        name: node.name(),
        addresses: &addresses.each_ref().map(String::as_str),
        pod_cidrs: &ranges.each_ref().map(String::as_str),
        labels: &[],
    })?;
    cluster.endpoints(&other, &[cluster.rig().pod(0, 1)?])?;
    let port = other.node_port(node, Family::V4, Protocol::Tcp)?.port();
    let node_port = Ask::tcp(SocketAddr::from((new, port)));
    until_answered_by(cluster.rig().client(), node_port, &["pod-a2"])?;
    let took = began.elapsed();
    ensure!(took < SOON, "the change was seen after {} s", took.as_secs());
    Ok(())
}
