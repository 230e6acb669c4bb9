//! The way back to netfilter rules beside flows of ours: netfilter gives a new connection no port that one of our flows
//! uses towards the same backend, because the answer would go to the client of that flow (ADR 0031).
//!
//! The rules are written by the test and leave netfilter two ports to choose from, one of which is taken.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Kept};
use lb_tests::wait::wait_until_ok;

/// The deadline of all waits in this file.
const SOON: Duration = Duration::from_mins(1);
const NODE_PORT: u16 = 30_080;
/// The number of sockets for each client, family and transport. Without knowledge of our flows, netfilter would choose
/// the wrong port for every second one.
const EACH: u16 = 4;
/// The timeout in milliseconds after which an answer is lost.
const PATIENCE: u64 = 2_000;
/// The source port of the first new socket. Each has a port of its own, by which the rules match it.
const FIRST: u16 = 26_000;

/// A socket with a flow of ours, and the question of a new flow that the rules will translate, to the same frontend.
struct Pair<'a> {
    who: &'a Member,
    kept: Kept<'a>,
    /// The source port of the first flow as the backend sees it.
    taken: u16,
    new: Ask,
}

/// Opens the socket of the first flow, and chooses the port of the second one.
fn pair(who: &Member, question: Ask, number: u16) -> Result<Pair<'_>> {
    // Neighbouring sockets get neighbouring ports from our data path: this numbering leaves a free port between them.
    let kept = who.peer().keep(question.from_port(FIRST - 1_000 + 2 * number))?;
    let taken = kept.ask()?.client.port();
    let new = question.from_port(FIRST + number).within(PATIENCE);
    Ok(Pair { who, kept, taken, new })
}

/// Pairs of a node process, through the `ClusterIP`, and of an external client, through the `NodePort`.
fn pairs<'a>(rig: &'a Rig, web: &Service) -> Result<Vec<Pair<'a>>> {
    let (node, mut all) = (rig.node(0)?, Vec::new());
    for (family, protocol) in matrix() {
        let node_port = node.addresses().socket(family, NODE_PORT);
        let askers: [(&Member, _); 2] = [(node, web.frontend(family)), (rig.client(), node_port)];
        for (who, to) in askers {
            for _ in 0..EACH {
                let number = all.len() as u16;
                all.push(pair(who, Ask::new(protocol, to), number)?);
            }
        }
    }
    Ok(all)
}

/// The rules for one family: they translate frontends to the backend, and masquerade with one of two ports.
fn rules(pairs: &[Pair<'_>], family: Family, backend: SocketAddr) -> String {
    let words = if family == Family::V4 { "ip" } else { "ip6" };
    let own = pairs.iter().filter(|pair| pair.new.to.is_ipv4() == (family == Family::V4));
    let (mut translations, mut ports) = (BTreeSet::new(), Vec::new());
    for Pair { taken, new, .. } in own {
        let (to, protocol) = (new.to, new.protocol.name().to_lowercase());
        let translation =
            format!("{words} daddr {} {protocol} dport {} dnat to {backend}\n", to.ip(), to.port());
        let _is_first: bool = translations.insert(translation);
        let sport = new.from.map_or(0, |from| from.port());
        let (low, high) = (taken, taken + 1);
        ports.push(format!(
            "{protocol} sport {sport} {words} daddr {} masquerade to :{low}-{high}\n",
            backend.ip()
        ));
    }
    let translations: String = translations.into_iter().collect();
    let chain = |hook: &str, priority: &str, rules: &str| {
        format!("chain {hook} {{\ntype nat hook {hook} priority {priority}\n{rules}}}\n")
    };
    let chains = chain("prerouting", "-100", &translations)
        + &chain("output", "-100", &translations)
        + &chain("postrouting", "100", &ports.concat());
    format!("table {words} kube-proxy {{\n{chains}}}\n")
}

#[test]
fn new_connections_get_no_port_of_a_flow_while_it_drains() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.pods(&[rig.pod(1, 1)?]);
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    let (node, backend) = (rig.node(0)?, rig.pod(1, 1)?);
    let pairs = pairs(&rig, &web)?;
    agent.stop()?;
    let command = ["cleanup", "--drain", "--after-rules"];
    let log = node.directory().join("drain.log");
    let drain = agent.start_command(&command, &log)?;
    wait_until_ok(SOON, "flows are reserved", || {
        let said = fs::read_to_string(&log).unwrap_or_default();
        ensure!(said.contains("every flow is reserved"), "{said}");
        Ok(())
    })?;
    for family in Family::ALL {
        let rules = rules(&pairs, family, backend.addresses().socket(family, TARGET));
        drop(node.netns().tool_fed("nft", &["-f", "-"], &rules).context(rules)?);
    }
    wait_until_ok(SOON, "nothing begins", || {
        let status = agent.exit_said(&["status"])?;
        ensure!(status.contains("Draining"), "{status}");
        Ok(())
    })?;
    let mut lost = Vec::new();
    for Pair { who, kept, taken, new } in &pairs {
        let name = who.name();
        match who.peer().ask(*new) {
            Ok(answer) if answer.client.port() == taken + 1 => {}
            other => lost.push(format!("{name}, {new:?} beside {taken}: {other:?}")),
        }
        lost.extend(kept.ask().err().map(|error| format!("{name}, kept, {taken}: {error}")));
    }
    drop(drain);
    ensure!(lost.is_empty(), "{} of {}: {lost:#?}", lost.len(), pairs.len());
    Ok(())
}

/// Without rules, no other data path would serve.
#[test]
fn rules_that_do_not_come_leave_the_data_path_in_place() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let (code, said) =
        agent.exit_code(&["cleanup", "--drain", "--after-rules", "--timeout", "1"])?;
    ensure!(code == 1 && said.contains("rules did not appear within 1 s"), "{code}: {said}");
    for (family, protocol) in matrix() {
        drop(ask(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)))?);
    }
    Ok(())
}
