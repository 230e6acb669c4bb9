//! The setting `socketLB: all`: socket hooks also serve the sockets of pods, unless the pod's source address matters.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{
    Rig, TARGET, ask, different_servers, dropped, matrix, refused, servers, until,
};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::{Answer, Ask, Failure, Protocol};
use lb_tests::wait::wait_until;

const NODE_PORT: u16 = 30_080;
const VIP_PORT: u16 = 8_443;
/// The deadline for the agent to follow a change.
const SOON: Duration = Duration::from_secs(30);

in_both_shapes!(
    sockets_of_pods_are_served_and_their_packets_pass,
    service_without_endpoints_is_refused_at_once,
    datagrams_move_on_when_their_endpoint_leaves,
    decisions_by_address_are_left_to_the_packets_of_a_pod,
    loopback_of_a_pod_is_its_own,
    pod_that_no_hook_sees_is_served_by_its_packets,
);

/// Starts agents with `socketLB: all`.
fn rig(shape: Shape, more: &str) -> Result<Rig> {
    let mut rig = Rig::build(Topology::builder(shape))?;
    let config = rig.configuration(&format!("socketLB: all\n{more}"))?;
    rig.start_agents(&[&config])?;
    Ok(rig)
}

/// The number of socket calls that were redirected to a backend, and of flows that packets began.
fn served(agent: &Agent) -> Result<[f64; 2]> {
    let calls = agent.metric(&["lb_events_total", "\"socket_translated\""])?;
    Ok([calls, agent.metric(&["lb_datapath_packets_total", "\"pod_ingress\"", "\"new_flow\""])?])
}

fn sockets_of_pods_are_served_and_their_packets_pass(shape: Shape) -> Result<()> {
    let rig = rig(shape, "")?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    let pod = rig.pod(0, 0)?;
    rig.change(&web, pod, Ask::udp(web.frontend(Family::V4)), Result::is_ok)?;
    rig.until_programmed()?;
    let [_, packets] = served(rig.agent(0)?)?;
    for family in Family::ALL {
        let node_port = rig.node(0)?.addresses().socket(family, NODE_PORT);
        for to in [web.frontend(family), node_port] {
            let question = Ask::tcp(to);
            let [before, _] = served(rig.agent(0)?)?;
            let answer = ask(pod, question)?;
            ensure!(answer.peer == to, "the pod is shown the backend: {answer:?}");
            let own = pod.addresses().of(family);
            ensure!(answer.client.ip() == own, "the backend sees another: {answer:?}");
            let [after, _] = served(rig.agent(0)?)?;
            ensure!(after > before, "no hook served {question:?}");
        }
        let all = different_servers(pod, Ask::tcp(web.frontend(family)), 4)?;
        ensure!(all.len() == rig.pods().len(), "{all:?}");
    }
    let [_, after] = served(rig.agent(0)?)?;
    ensure!(after <= packets, "{} flows of packets began", after - packets);
    Ok(())
}

fn service_without_endpoints_is_refused_at_once(shape: Shape) -> Result<()> {
    let rig = rig(shape, "")?;
    let empty = Service::new("empty", 10)?.port(80, TARGET);
    let pod = rig.pod(0, 0)?;
    let elsewhere = Service::new("elsewhere", 11)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    let elsewhere = elsewhere.internal_policy_local();
    rig.manifests().apply(&empty)?;
    let other = elsewhere.frontend(Family::V4);
    rig.change(&elsewhere, rig.pod(1, 1)?, Ask::tcp(other), Result::is_ok)?;
    rig.until_programmed()?;
    for (family, protocol) in matrix() {
        let refusal = Ask::new(protocol, empty.frontend(family));
        until(pod, refusal, |outcome| *outcome == Err(Failure::Refused))?;
        refused(pod, refusal)?;
        dropped(pod, Ask::new(protocol, elsewhere.frontend(family)))?;
    }
    Ok(())
}

/// Datagrams are not served by a hook: a connected socket follows its Service as an unconnected one does.
fn datagrams_move_on_when_their_endpoint_leaves(shape: Shape) -> Result<()> {
    let rig = rig(shape, "")?;
    let pod = rig.pod(0, 0)?;
    let web = Service::new("web", 10)?.port(80, TARGET);
    let [before, after] =
        [rig.pod(0, 1)?, rig.pod(1, 1)?].map(|backend| web.clone().pods(&[backend]));
    for family in Family::ALL {
        let question = Ask::udp(web.frontend(family));
        for question in [question, question.unconnected()] {
            let moves = |service: &Service, name: &str| {
                let by = |answer: &Answer| answer.server == name;
                rig.change(service, pod, question, |outcome| outcome.as_ref().is_ok_and(by))
            };
            moves(&before, "pod-a2")?;
            let kept = pod.peer().keep(question)?;
            for (service, name) in [(&before, "pod-a2"), (&after, "pod-b2")] {
                moves(service, name)?;
                // The old flow ends right after the switch; a question may fall between the two.
                let answer = wait_until(SOON, "the socket follows", || {
                    kept.ask().ok().filter(|answer| answer.server == name)
                })?;
                ensure!(answer.peer == question.to, "{answer:?}");
            }
        }
    }
    Ok(())
}

/// Source ranges and affinity use the pod's own address, not the node's.
fn decisions_by_address_are_left_to_the_packets_of_a_pod(shape: Shape) -> Result<()> {
    let rig = rig(shape, "")?;
    let [allowed, other] = [rig.pod(0, 0)?, rig.pod(0, 1)?];
    let node = rig.node(0)?.addresses();
    let vips = ["198.51.100.7".parse()?, "fd00:198::7".parse()?];
    let own = allowed.addresses();
    let ranges = [
        format!("{}/32", own.v4),
        format!("{}/128", own.v6),
        format!("{}/32", node.v4),
        format!("{}/128", node.v6),
    ];
    let ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
    let vip = Service::new("vip", 10)?.port(VIP_PORT, TARGET).load_balancer(&vips, &ranges);
    let vip = vip.pods(&rig.pods());
    let sticky = Service::new("sticky", 11)?.port(80, TARGET).affinity(60).pods(&rig.pods());
    rig.manifests().apply(&sticky)?;
    let to = SocketAddr::new(vips[0], VIP_PORT);
    rig.change(&vip, allowed, Ask::tcp(to), Result::is_ok)?;
    rig.until_programmed()?;
    for (family, protocol) in matrix() {
        let address = if family == Family::V4 { vips[0] } else { vips[1] };
        let question = Ask::new(protocol, SocketAddr::new(address, VIP_PORT));
        let answer = ask(allowed, question)?;
        ensure!(answer.peer == question.to, "{answer:?}");
        dropped(other, question)?;
        let one = servers(other, Ask::new(protocol, sticky.frontend(family)), 20)?;
        ensure!(one.len() == 1, "affinity: {one:?}");
    }
    let clients = rig.agent(0)?.command(&["affinity", "list"])?;
    let own = other.addresses();
    ensure!(clients.contains(&own.v4.to_string()), "no {} in {clients}", own.v4);
    ensure!(clients.contains(&own.v6.to_string()), "no {} in {clients}", own.v6);
    Ok(())
}

/// `NodePorts` on loopback are for host processes only.
fn loopback_of_a_pod_is_its_own(shape: Shape) -> Result<()> {
    let rig = rig(shape, "localhostNodePorts: true")?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    let pod = rig.pod(0, 0)?;
    let loopback = |family, port| -> Result<SocketAddr> {
        let ip = if family == Family::V4 { "127.0.0.1" } else { "::1" };
        Ok(SocketAddr::new(ip.parse()?, port))
    };
    let hosts = Ask::tcp(loopback(Family::V4, NODE_PORT)?);
    rig.change(&web, rig.node(0)?, hosts, Result::is_ok)?;
    rig.until_programmed()?;
    for (family, protocol) in matrix() {
        let to = loopback(family, NODE_PORT)?;
        let answer = ask(rig.node(0)?, Ask::new(protocol, to))?;
        ensure!(answer.peer == to, "{answer:?}");
        refused(pod, Ask::new(protocol, to))?;
    }
    Ok(())
}

/// A process of a pod outside the cgroup to which the hooks are attached.
fn pod_that_no_hook_sees_is_served_by_its_packets(shape: Shape) -> Result<()> {
    let mut rig = rig(shape, "")?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&rig.pods());
    rig.manifests().apply(&web)?;
    let mut agent = rig.take_agent(0)?;
    let only_host = rig.node(0)?.cgroup().join("host");
    agent.set_flag("--cgroup", &only_host.to_string_lossy());
    agent.stop()?;
    agent.start_again()?;
    let pod = rig.pod(0, 0)?;
    let [calls, packets] = served(&agent)?;
    for (family, protocol) in matrix() {
        let own = rig.node(0)?.addresses().socket(family, NODE_PORT);
        for to in [web.frontend(family), own] {
            let question = Ask::new(protocol, to);
            let asked = [question, question.unconnected()];
            let asked = if protocol == Protocol::Udp { &asked[..] } else { &asked[..1] };
            for question in asked {
                let answer = ask(pod, *question)?;
                ensure!(answer.peer == to, "{answer:?}");
            }
        }
    }
    let [no_more, after] = served(&agent)?;
    ensure!(no_more <= calls, "a hook served {} calls", no_more - calls);
    ensure!(after > packets, "no packet was translated");
    Ok(())
}
