//! Processes of a node that no socket hook serves, outside `--cgroup` or with `socketLB: off`: their packets are
//! translated where they leave the node (ADR 0027).

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::in_both_shapes;
use lb_tests::manifest::{Endpoint, Service};
use lb_tests::rig::{
    Rig, TARGET, answered_by, ask, different_servers, dropped, matrix, refused, servers, until,
    until_within,
};
use lb_tests::topology::{Addresses, Family, Node, Pod, Segment, Shape, Topology};
use lb_tests::traffic::{Ask, Failure, Handmade, PAUSE, Protocol, pieces};
use lb_tests::wait::wait_until;
use serde_json::json;

/// The deadline for the agent to follow a change.
const SOON: Duration = Duration::from_secs(30);
/// The deadline for the kernel to find a machine again.
const A_MINUTE: Duration = Duration::from_mins(1);
/// The networks of the ClusterIPs of a rig.
const CLUSTER_IPS: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];
/// The deadline for what the kernel notifies; the agent checks on its own every 30 seconds.
const AT_ONCE: Duration = Duration::from_secs(5);

in_both_shapes!(
    every_kind_of_backend_answers_through_a_closed_firewall,
    backend_sees_an_address_of_the_node,
    every_backend_gets_its_share_and_affinity_holds,
    service_without_endpoints_is_refused_and_a_forbidden_one_is_silent,
    datagrams_move_on_when_their_endpoint_leaves,
    process_outside_the_cgroup_is_answered,
    large_datagrams_arrive_in_one_piece,
    node_port_is_served_on_this_node_and_on_others,
    without_a_default_route_every_frontend_is_reached,
    frontend_in_a_network_of_the_node_needs_no_machine_that_answers_for_it,
    marked_packets_take_the_route_of_their_mark,
    forwarding_switched_off_interrupts_only_for_a_moment,
);

/// Starts agents without socket hooks, beside the firewall of a CNI plugin.
fn without_hooks(shape: Shape, more: &str) -> Result<Rig> {
    let mut rig = Rig::build(Topology::builder(shape).firewall())?;
    let config = rig.configuration(&format!("socketLB: 'off'\n{more}"))?;
    rig.start_agents(&[&config])?;
    Ok(rig)
}

/// The backends are pods and hosts, local and remote.
fn every_kind_of_backend_answers_through_a_closed_firewall(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let node = rig.node(0)?;
    for (name, endpoint) in [
        ("pod-a2", Endpoint::pod(rig.pod(0, 1)?)),
        ("pod-b2", Endpoint::pod(rig.pod(1, 1)?)),
        ("node-a", Endpoint::host(node)),
        ("node-b", Endpoint::host(rig.node(1)?)),
    ] {
        let vip = "198.51.100.7".parse()?;
        let vip6 = "fd00:198::7".parse()?;
        let web = Service::new("web", 10)?.port(80, TARGET).external_ips(&[vip, vip6]);
        let web = web.endpoints([endpoint]);
        for (family, protocol) in matrix() {
            let external = SocketAddr::new(if family == Family::V4 { vip } else { vip6 }, 80);
            for to in [web.frontend(family), external] {
                let question = Ask::new(protocol, to);
                rig.change(&web, node, question, answered_by(name))?;
                let kept = node.peer().keep(question)?;
                for _ in 0..3 {
                    let answer = kept.ask()?;
                    ensure!(answer.server == name && answer.peer == to, "{answer:?}");
                }
                if protocol == Protocol::Udp {
                    let answer = ask(node, question.unconnected())?;
                    ensure!(answer.server == name && answer.peer == to, "{answer:?}");
                }
            }
        }
    }
    Ok(())
}

/// The address of node-a on the interface towards a pod.
fn seen_by(rig: &Rig, shape: Shape, pod: &Pod) -> Result<Addresses> {
    if shape == Shape::Bridged && rig.pod(0, 1)?.name() == pod.name() {
        return Addresses::parse("10.244.1.1", "fd00:244:1::1");
    }
    Ok(rig.node(0)?.addresses())
}

/// As with kube-proxy, for local and remote backends.
fn backend_sees_an_address_of_the_node(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let node = rig.node(0)?;
    for pod in [rig.pod(0, 1)?, rig.pod(1, 1)?] {
        let web = Service::new("web", 10)?.port(80, TARGET).pods(&[pod]);
        for (family, protocol) in matrix() {
            let question = Ask::new(protocol, web.frontend(family));
            rig.change(&web, node, question, answered_by(pod.name()))?;
            let saw = ask(node, question)?.client.ip();
            ensure!(saw == seen_by(&rig, shape, pod)?.of(family), "{} saw {saw}", pod.name());
        }
    }
    Ok(())
}

fn every_backend_gets_its_share_and_affinity_holds(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let node = rig.node(0)?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&rig.pods());
    let sticky = Service::new("sticky", 11)?.port(80, TARGET).pods(&rig.pods()).affinity(600);
    rig.manifests().apply(&web)?;
    rig.change(&sticky, node, Ask::tcp(sticky.frontend(Family::V6)), Result::is_ok)?;
    rig.until_programmed()?;
    for (family, protocol) in matrix() {
        let found = different_servers(node, Ask::new(protocol, web.frontend(family)), 4)?;
        ensure!(found.len() == 4, "{family} {protocol}: only {found:?}");
        let found = servers(node, Ask::new(protocol, sticky.frontend(family)), 20)?;
        ensure!(found.len() == 1, "{family} {protocol}: {found:?}");
    }
    Ok(())
}

fn service_without_endpoints_is_refused_and_a_forbidden_one_is_silent(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let node = rig.node(0)?;
    let empty = Service::new("empty", 10)?.port(80, TARGET);
    let elsewhere = Service::new("elsewhere", 11)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    let elsewhere = elsewhere.internal_policy_local();
    rig.manifests().apply(&elsewhere)?;
    rig.change(&empty, node, Ask::tcp(empty.frontend(Family::V6)), |outcome| {
        *outcome == Err(Failure::Refused)
    })?;
    rig.until_programmed()?;
    for (family, protocol) in matrix() {
        refused(node, Ask::new(protocol, empty.frontend(family)))?;
        dropped(node, Ask::new(protocol, elsewhere.frontend(family)))?;
    }
    Ok(())
}

fn datagrams_move_on_when_their_endpoint_leaves(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let node = rig.node(0)?;
    let web = Service::new("web", 10)?.port(80, TARGET);
    let (before, after) =
        (web.clone().pods(&[rig.pod(0, 1)?]), web.clone().pods(&[rig.pod(1, 1)?]));
    for family in Family::ALL {
        for question in
            [Ask::udp(web.frontend(family)), Ask::udp(web.frontend(family)).unconnected()]
        {
            rig.change(&before, node, question, answered_by("pod-a2"))?;
            let (kept, open) =
                (node.peer().keep(question)?, node.peer().keep(Ask::tcp(question.to))?);
            ensure!(kept.ask()?.server == "pod-a2" && open.ask()?.server == "pod-a2");
            rig.change(&after, node, question, answered_by("pod-b2"))?;
            // The old flow ends right after the switch; a question may fall between the two.
            wait_until(SOON, "datagrams move on", || {
                answered_by("pod-b2")(&kept.ask()).then_some(())
            })?;
            let stayed = open.ask()?.server;
            ensure!(stayed == "pod-a2", "a connection moved to {stayed}");
        }
    }
    Ok(())
}

/// The hooks are attached, but the test process is in another cgroup than the node.
fn process_outside_the_cgroup_is_answered(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&rig.pods());
    let rig = rig.start(&[&web])?;
    for family in Family::ALL {
        let to = web.frontend(family);
        let asked = rig.node(0)?.netns().run_in(|| -> std::io::Result<String> {
            let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(15))?;
            stream.set_read_timeout(Some(Duration::from_secs(15)))?;
            stream.write_all(b"ask 0 \n")?;
            stream.shutdown(Shutdown::Write)?;
            let mut said = String::new();
            stream.read_to_string(&mut said)?;
            Ok(said)
        })?;
        let said = asked.with_context(|| format!("{to}"))?;
        ensure!(said.contains("pod-"), "{to} said {said:?}");
    }
    Ok(())
}

/// Later fragments are translated like the first one.
fn large_datagrams_arrive_in_one_piece(shape: Shape) -> Result<()> {
    let rig = Rig::shared(shape)?;
    let near = Service::new("near", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let far = Service::new("far", 11)?.port(80, TARGET).pods(&[rig.pod(1, 1)?]);
    let rig = rig.start(&[&near, &far])?;
    let node = rig.node(0)?;
    for family in Family::ALL {
        for (service, port) in [&near, &far].into_iter().zip([26_100, 26_101]) {
            let to = service.frontend(family);
            let hand = Handmade::open(node, node.addresses().socket(family, port))?;
            for (size, id) in [(100, 1), (3_000, 2), (20_000, 3)] {
                let parts = pieces(&hand.question(to, size), 1_400, id);
                parts.iter().try_for_each(|part| hand.send(part, to))?;
                hand.answer(to, size).with_context(|| format!("{size} bytes to {to}"))?;
            }
        }
    }
    Ok(())
}

fn node_port_is_served_on_this_node_and_on_others(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let node = rig.node(0)?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080);
    for pod in [rig.pod(0, 1)?, rig.pod(1, 1)?] {
        let web = web.clone().pods(&[pod]);
        for (family, protocol) in matrix() {
            for asked in [node, rig.node(1)?] {
                let question = Ask::new(protocol, asked.addresses().socket(family, 30_080));
                rig.change(&web, node, question, answered_by(pod.name()))?;
                let answer = ask(node, question)?;
                ensure!(answer.peer == question.to, "{answer:?}");
            }
        }
    }
    Ok(())
}

/// The agent's own routing table leads to all frontends, also while no agent runs, and is removed with them.
fn without_a_default_route_every_frontend_is_reached(shape: Shape) -> Result<()> {
    let mut rig = without_hooks(shape, "")?;
    let mut agent = rig.take_agent(0)?;
    let node = rig.node(0)?;
    // The host that answers ARP for the gateway of routed pods (`proxy_arp`) must have a route to it.
    node.netns().ip("route add 169.254.1.1/32 dev eth0")?;
    for family in ["-4", "-6"] {
        let _routes: String =
            node.netns().tool("ip", &[family, "route", "del", "default"]).unwrap_or_default();
    }
    let (vip, vip6) = ("198.51.100.7".parse()?, "fd00:198::7".parse()?);
    let web = Service::new("web", 10)?.port(80, TARGET).external_ips(&[vip, vip6]);
    for pod in [rig.pod(0, 1)?, rig.pod(1, 1)?] {
        let web = web.clone().pods(&[pod]);
        for (family, protocol) in matrix() {
            let external = SocketAddr::new(if family == Family::V4 { vip } else { vip6 }, 80);
            for to in [web.frontend(family), external] {
                let question = Ask::new(protocol, to);
                rig.change(&web, node, question, answered_by(pod.name()))?;
                let answer = ask(node, question)?;
                ensure!(answer.peer == to, "{answer:?}");
                let seen = seen_by(&rig, shape, pod)?.of(family);
                ensure!(answer.client.ip() == seen, "{answer:?}");
            }
        }
    }
    let mut loads = Vec::new();
    for (family, protocol) in matrix() {
        loads.push(node.peer().load(Ask::new(protocol, web.frontend(family)), false, PAUSE)?);
    }
    agent.kill9()?;
    agent.start_again()?;
    for load in loads {
        drop(load.finish_without_loss()?);
    }
    Ok(())
}

/// An external IP in the node's network that no machine answers for, as on the node that announces it by ARP and NDP
/// itself (`MetalLB`), and ClusterIPs behind a route that names only the interface.
fn frontend_in_a_network_of_the_node_needs_no_machine_that_answers_for_it(
    shape: Shape,
) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let (node, other) = (rig.node(0)?, rig.node(1)?);
    let vip = Segment::First.host(200)?;
    let web = Service::new("web", 10)?.port(80, TARGET).external_ips(&vip.both());
    let web = web.pods(&[rig.pod(0, 1)?, rig.pod(1, 1)?]);
    rig.manifests().write(
        "cidr",
        &[json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": { "name": "services" }, "spec": { "cidrs": CLUSTER_IPS },
        })],
    )?;
    rig.manifests().apply(&web)?;
    for cidr in CLUSTER_IPS {
        node.netns().ip(&format!("route add {cidr} dev eth0"))?;
    }
    for (family, protocol) in matrix() {
        for to in [web.frontend(family), SocketAddr::new(vip.of(family), 80)] {
            let question = Ask::new(protocol, to);
            until(node, question, Result::is_ok)?;
            let answer = ask(node, question)?;
            ensure!(answer.peer == to, "{answer:?}");
        }
    }
    // The kernel probes an entry in use.
    let mut loads = Vec::new();
    for family in [Family::V4, Family::V6] {
        let question = Ask::udp(SocketAddr::new(vip.of(family), 80));
        loads.push(node.peer().load(question, false, PAUSE)?);
        for state in ["PROBE", "DELAY"] {
            wait_until(SOON, "the neighbour entry is probed, and stays", || {
                let entry = neighbour(node, vip.of(family)).ok()?;
                entry.contains(&format!("ff:ff:ff:ff:ff:ff {state}")).then_some(())
            })?;
        }
    }
    other.netns().ip(&format!("addr add {}/32 dev eth0", vip.v4))?;
    other.netns().ip(&format!("addr add {}/128 dev eth0 nodad", vip.v6))?;
    for ip in vip.both() {
        wait_until(A_MINUTE, "the machine that has the address is found", || {
            let entry = neighbour(node, ip).ok()?;
            (entry.contains("lladdr") && !entry.contains("ff:ff:ff:ff:ff:ff")).then_some(())
        })?;
    }
    for load in loads {
        drop(load.finish_without_loss()?);
    }
    Ok(())
}

/// Returns the entry of an address in the node's neighbour table.
fn neighbour(node: &Node, ip: IpAddr) -> Result<String> {
    node.netns().tool("ip", &["neigh", "show", "to", &ip.to_string()])
}

/// A rule chooses the routes of marked packets, as with several uplinks: only theirs lead to the backend.
fn marked_packets_take_the_route_of_their_mark(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let (node, pod) = (rig.node(0)?, rig.pod(1, 1)?);
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[pod]);
    rig.manifests().apply(&web)?;
    for (family, protocol) in matrix() {
        until(node, Ask::new(protocol, web.frontend(family)), Result::is_ok)?;
    }
    for family in [Family::V4, Family::V6] {
        let (option, length) = if family == Family::V4 { ("-4", 32) } else { ("-6", 128) };
        let backend = pod.addresses().of(family);
        let other = rig.node(1)?.addresses().of(family);
        let ip = |words: &str| -> Result<String> {
            let words: Vec<&str> = [option].into_iter().chain(words.split(' ')).collect();
            node.netns().tool("ip", &words)
        };
        ip(&format!("route add {backend}/{length} via {other} dev eth0 table 77"))?;
        ip("rule add fwmark 7 lookup 77 priority 100")?;
        ip(&format!("route add unreachable {backend}/{length}"))?;
    }
    let marks = "table inet marks {
        chain output { type filter hook output priority 0; ip daddr 10.96.0.10 meta mark set 7;
            ip6 daddr fd00:10:96::10 meta mark set 7; }
    }";
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, web.frontend(family));
        ensure!(node.peer().ask(question.within(500)).is_err(), "{question:?}");
    }
    node.netns().tool("nft", &[marks])?;
    for (family, protocol) in matrix() {
        drop(ask(node, Ask::new(protocol, web.frontend(family)))?);
    }
    Ok(())
}

/// Written at run time, both sysctls also clear the setting of `lo`. In three rounds the periodic check comes once at
/// most.
fn forwarding_switched_off_interrupts_only_for_a_moment(shape: Shape) -> Result<()> {
    let rig = without_hooks(shape, "")?;
    let (node, pod) = (rig.node(0)?, rig.pod(1, 1)?);
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[pod]);
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, web.frontend(family));
        rig.change(&web, node, question, answered_by(pod.name()))?;
    }
    for _ in 0..3 {
        for value in ["0", "1"] {
            for name in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
                node.netns().sysctl(name, value)?;
            }
            for (family, protocol) in matrix() {
                let question = Ask::new(protocol, web.frontend(family));
                until_within(AT_ONCE, node, question, answered_by(pod.name()))?;
            }
        }
    }
    Ok(())
}
