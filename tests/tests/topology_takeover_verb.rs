//! The command `lb-agent takeover`: its output, its exit codes, and the parts of kube-proxy that an agent detects. The
//! test writes the rules with the names that kube-proxy gives them.

use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::agent::{Agent, Source};
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::control_plane::kube_proxy::by_hand::{self, Translation};
use lb_tests::manifest::Service;
use lb_tests::process::Program;
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Family, Node, Shape, Topology};
use lb_tests::traffic::{Ask, Kept, Protocol};
use lb_tests::wait::wait_until_ok;

/// The deadline of all waits in this file.
const SOON: Duration = Duration::from_mins(1);
/// The number of sockets of each transport and family that are open before the agent starts.
const EACH: usize = 4;
/// A port of the node that the kernel assigns to no socket.
const OWN: u16 = 61_999;
/// The number of all these sockets.
const ALL: usize = EACH * 4;
/// Rules and chains of the kubelet and of other programs, which must stay.
const STAYING: [&str; 7] = [
    "-A INPUT -j KUBE-FIREWALL",
    "-A PREROUTING -j CNI",
    "-A INPUT -j KUBE-ROUTER-INPUT",
    "-A FORWARD -p tcp -m tcp --dport 9 -j KUBE-POD-FW-A",
    "-A KUBE-POD-FW-A -j KUBE-NWPLCY-A",
    ":KUBE-IPTABLES-HINT",
    ":KUBE-KUBELET-CANARY",
];
/// A node with a Service of two pods, and a client pod as the first pod; and the translations of the rules, which send
/// packets for the Service to the first of its pods.
fn rig() -> Result<(Rig, Service, [Translation; 2])> {
    let rig = Rig::build(Topology::builder(Shape::Routed).nodes(1).pods(3))?;
    let service = Service::new("web", 10)?.port(80, TARGET);
    let service = service.pods(&[rig.pod(0, 1)?, rig.pod(0, 2)?]);
    rig.manifests().apply(&service)?;
    rig.node(0)?.netns().remember_datagrams(300)?;
    let pod = rig.pod(0, 1)?.addresses();
    let translation = |family| (service.frontend(family), pod.socket(family, TARGET));
    let translations = Family::ALL.map(translation);
    Ok((rig, service, translations))
}

/// Open sockets, by their transports.
type Sockets<'a> = Vec<(Protocol, Kept<'a>)>;

/// Opens sockets of the client pod, which the rules serve.
fn open<'a>(rig: &'a Rig, service: &Service) -> Result<Sockets<'a>> {
    let mut all = Vec::new();
    for (family, protocol) in matrix() {
        for _ in 0..EACH {
            let kept = rig.pod(0, 0)?.peer().keep(Ask::new(protocol, service.frontend(family)))?;
            all.push((protocol, kept));
        }
    }
    go_on(&all, |_| true)?;
    Ok(all)
}

/// Fails unless the sockets that `is_meant` selects are answered by the pod that the rules chose.
fn go_on(kept: &[(Protocol, Kept<'_>)], is_meant: fn(Protocol) -> bool) -> Result<()> {
    for (protocol, socket) in kept.iter().filter(|(protocol, _)| is_meant(*protocol)) {
        let server = socket.ask()?.server;
        ensure!(server == "pod-a2", "{server} answered by {protocol}");
    }
    Ok(())
}

/// The line about the remaining connections and rules.
fn left(connections: usize, rules: &str) -> String {
    format!(
        "{connections} connections still translated by netfilter; kube-proxy's rules: {rules}\n"
    )
}

fn start(rig: &Rig, flags: &[&str]) -> Result<Agent> {
    Agent::start(rig.node(0)?, Source::Manifests(rig.manifests().directory()), flags)
}

fn ends_with(agent: &Agent, arguments: &[&str], expected: (i32, &str)) -> Result<()> {
    let (code, said) = agent.ended(arguments)?;
    ensure!((code, said.as_str()) == expected, "{arguments:?} ended with {code}: {said}");
    Ok(())
}

/// Waits until the agent has nothing left to take over.
fn until_over(agent: &Agent, node: &Node) -> Result<()> {
    wait_until_ok(SOON, "the take-over is over", || {
        let (code, status) = agent.ended(&["status"])?;
        ensure!(code == 0 && !status.contains("Take-over"), "status ends with {code}: {status}");
        let tables = node.netns().tool("nft", &["list", "tables"])?;
        ensure!(!tables.contains("lb-agent"), "{tables}");
        Ok(())
    })
}

#[test]
fn connections_are_counted_down_also_by_an_agent_that_starts_again() -> Result<()> {
    let (rig, service, translations) = rig()?;
    let node = rig.node(0)?;
    by_hand::write(node.netns(), "kube-proxy", &translations)?;
    let mut kept = open(&rig, &service)?;
    let mut agent = start(&rig, &[])?;
    ends_with(&agent, &["takeover"], (1, &left(ALL, "nftables")))?;
    let removed = "removed 2 nftables tables named kube-proxy\n";
    let said = left(ALL, "nftables") + removed;
    ends_with(&agent, &["takeover", "--remove-rules"], (1, &said))?;
    go_on(&kept, |_| true)?;

    for end in [Agent::stop, Agent::kill9] {
        end(&mut agent)?;
        go_on(&kept, |_| true)?;
        agent.start_again()?;
        go_on(&kept, |_| true)?;
        let status = agent.exit_said(&["status"])?;
        ensure!(status.contains(&format!("Take-over      {}", left(ALL, "none"))), "{status}");
    }

    ends_with(&agent, &["takeover", "--wait", "--timeout", "1"], (1, &left(ALL, "none")))?;
    let mut waiting =
        agent.start_command(&["takeover", "--wait"], &node.directory().join("takeover"))?;
    let says = |waiting: &Program, count| {
        wait_until_ok(SOON, "the count goes down", || {
            let (said, line) = (waiting.log_end(ALL), left(count, "none"));
            ensure!(format!("{said}\n").ends_with(&line), "{said}");
            Ok(())
        })
    };
    says(&waiting, ALL)?;
    node.netns().remember_datagrams(1)?;
    go_on(&kept, |_| true)?;
    // Datagram flows expire by themselves, and a TCP connection ends when it is closed.
    says(&waiting, ALL / 2)?;
    kept.retain(|(protocol, _)| *protocol == Protocol::Tcp);
    drop(kept.pop());
    says(&waiting, ALL / 2 - 1)?;
    drop(kept);
    let status = waiting.wait_end()?;
    let said = waiting.log_end(1);
    ensure!(status.success() && said == "nothing left of kube-proxy", "{status}: {said}");
    ends_with(&agent, &["takeover"], (0, &(left(0, "none") + "nothing left of kube-proxy\n")))?;
    until_over(&agent, node)
}

#[test]
fn connections_without_rules_are_taken_over() -> Result<()> {
    taken_over_without_rules(
        &[],
        |_| true,
        |agent, node, kept| {
            let status = agent.exit_said(&["status"])?;
            ensure!(status.contains(&left(ALL, "none")) && !status.contains("Problem"), "{status}");
            node.netns().remember_datagrams(1)?;
            go_on(&kept, |_| true)?;
            drop(kept);
            until_over(agent, node)
        },
    )
}

#[test]
fn connections_that_do_not_fit_are_reported_and_cost_no_other() -> Result<()> {
    let is_tcp = |protocol| protocol == Protocol::Tcp;
    taken_over_without_rules(&["--map-size=INHERITED=4"], is_tcp, |agent, _, mut kept| {
        // The map lacks room for one tuple of each socket for its answers, and for one more of each UDP socket.
        says_problem(agent, ALL, ALL + ALL / 2 - 4)?;
        kept.retain(|(protocol, _)| !is_tcp(*protocol));
        says_problem(agent, ALL / 2, ALL - 4)
    })
}

/// Waits until `status` reports this number of connections, and of tuples without room.
fn says_problem(agent: &Agent, connections: usize, lacking: usize) -> Result<()> {
    let lacking = format!("INHERITED is full and lacks {lacking} tuples");
    wait_until_ok(SOON, "the problem is reported", || {
        let (code, status) = agent.ended(&["status"])?;
        ensure!(status.contains("Problem") && status.contains(&lacking), "{status}");
        ensure!(status.contains(&left(connections, "none")), "{status}");
        ensure!(code == 1, "status ends with {code}");
        Ok(())
    })
}

/// The rules are deleted before the agent starts, which finds only connections. Those that `is_meant` selects continue,
/// and new ones begin.
fn taken_over_without_rules(
    flags: &[&str],
    is_meant: fn(Protocol) -> bool,
    check: impl Fn(&Agent, &Node, Sockets<'_>) -> Result<()>,
) -> Result<()> {
    let (rig, service, translations) = rig()?;
    let node = rig.node(0)?;
    by_hand::write(node.netns(), "kube-proxy", &translations)?;
    let kept = open(&rig, &service)?;
    by_hand::delete(node.netns(), "kube-proxy")?;
    let agent = start(&rig, flags)?;
    go_on(&kept, is_meant)?;
    for (family, protocol) in matrix() {
        drop(ask(rig.pod(0, 0)?, Ask::new(protocol, service.frontend(family)))?);
    }
    go_on(&kept, is_meant)?;
    ensure!(agent.metric(&["take_over"])? > 0.0, "no packet was left to netfilter");
    check(&agent, node, kept)
}

#[test]
fn chains_are_removed_at_once_and_the_device_of_ipvs_after_the_last_connection() -> Result<()> {
    let (rig, service, translations) = rig()?;
    let node = rig.node(0)?;
    // A bridge with this name: the agent checks the name only, and no test kernel has the IPVS module.
    node.netns().ip("link add kube-ipvs0 type bridge")?;
    by_hand::write_neighbours(node.netns())?;
    by_hand::write_chains(node.netns())?;
    by_hand::write(node.netns(), "another", &translations)?;
    let kept = open(&rig, &service)?;
    let agent = start(&rig, &[])?;
    let both = left(ALL, "iptables, ipvs (kube-ipvs0)");
    let said = both + "removed chains of iptables-nft\nremoved chains of ip6tables-nft\n";
    ends_with(&agent, &["takeover", "--remove-rules"], (1, &said))?;
    let saved = Mode::Iptables.rules(node.netns())?;
    for gone in ["KUBE-SERVICES", "KUBE-SVC-A", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"] {
        ensure!(!saved.contains(gone), "{gone}: {saved}");
    }
    for stays in STAYING {
        ensure!(saved.matches(stays).count() == 2, "{stays} in both families: {saved}");
    }
    ends_with(&agent, &["takeover"], (1, &left(ALL, "ipvs (kube-ipvs0)")))?;

    // The other rules would create more flows that count as kube-proxy's.
    by_hand::delete(node.netns(), "another")?;
    node.netns().remember_datagrams(1)?;
    go_on(&kept, |_| true)?;
    drop(kept);
    let (code, said) = agent.ended(&["takeover", "--remove-rules", "--wait", "--timeout", "60"])?;
    let end = "removed interface kube-ipvs0\nnothing left of kube-proxy\n";
    ensure!(code == 0 && said.ends_with(end), "ended with {code}: {said}");
    let links = node.netns().tool("ip", &["link"])?;
    ensure!(!links.contains("kube-ipvs0"), "{links}");
    until_over(&agent, node)
}

#[test]
fn chains_of_the_kubelet_and_of_network_policies_are_no_take_over() -> Result<()> {
    let (rig, service, _) = rig()?;
    let node = rig.node(0)?;
    by_hand::write_neighbours(node.netns())?;
    let agent = start(&rig, &[])?;
    for (family, protocol) in matrix() {
        drop(ask(rig.pod(0, 0)?, Ask::new(protocol, service.frontend(family)))?);
    }
    let status = agent.exit_said(&["status"])?;
    ensure!(!status.contains("Take-over"), "{status}");
    let said = left(0, "none") + "nothing left of kube-proxy\n";
    ends_with(&agent, &["takeover", "--wait", "--timeout", "1"], (0, &said))?;
    ends_with(&agent, &["takeover", "--remove-rules"], (0, &said))?;
    let saved = Mode::Iptables.rules(node.netns())?;
    for stays in STAYING.into_iter().chain([":KUBE-MARK-MASQ", "-j KUBE-POSTROUTING"]) {
        ensure!(saved.matches(stays).count() == 2, "{stays} in both families: {saved}");
    }
    Ok(())
}

/// A connection of the rules and one of the agent use the same port of the node, one after the other. Netfilter
/// remembers the first one for two minutes, unless it is made to forget it.
#[test]
fn connection_with_the_port_of_an_ended_one_goes_on_when_rules_return() -> Result<()> {
    let (rig, ..) = rig()?;
    let node = rig.node(0)?;
    let service = Service::new("one", 11)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&service)?;
    let pod = rig.pod(0, 1)?.addresses();
    let translations =
        Family::ALL.map(|family| (service.frontend(family), pod.socket(family, TARGET)));
    // This is the only port that the kernel can choose. The test must not bind the socket to it, because connect(2) on
    // a bound socket is not redirected to a backend.
    node.netns().sysctl("net.ipv4.ip_local_port_range", &format!("{OWN} {OWN}"))?;
    let questions = Family::ALL.map(|family| Ask::tcp(service.frontend(family)));
    by_hand::write(node.netns(), "kube-proxy", &translations)?;
    for question in questions {
        drop(ask(node, question)?);
    }
    let agent = start(&rig, &[])?;
    let said = agent.exit_said(&["takeover", "--remove-rules"])?;
    ensure!(said.contains("removed 2 nftables tables named kube-proxy"), "{said}");
    until_over(&agent, node)?;
    let kept = questions.map(|question| node.peer().keep(question));
    by_hand::write(node.netns(), "kube-proxy", &translations)?;
    for socket in kept {
        drop(socket?.ask()?);
    }
    Ok(())
}
