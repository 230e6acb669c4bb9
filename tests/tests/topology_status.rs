//! The operator's view: the complete output of `status`, and the names of Services as soon as their rows exist.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_agent::datapath::SOCKET_HOOKS;
use lb_tests::agent::Agent;
use lb_tests::http;
use lb_tests::manifest::{Service, node_object};
use lb_tests::rig::{Rig, TARGET, until};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;
use serde_json::{Value, json};

/// The number of Services with a health check, and the port of the first.
const CHECKED: u16 = 2_000;
const FIRST_CHECK: u16 = 20_000;
/// The memory limit in bytes for all of them: objects, map entries, and two listeners each.
const MEMORY: f64 = 30e6;
/// The limit for the time of an answer with all of them, as a multiple of the time with one. A linear search would
/// exceed it.
const SLOWER: u32 = 10;
const SOON: Duration = Duration::from_mins(1);

/// The output of `status`; `#` replaces numbers that vary.
const SCREEN: &str = "\
Agent          running (process #)
Node           node-a
Last sync      #
Pins           PINS
Socket hooks   4 of 4 attached
Interface      lo              host     attached  192.168.50.11 fd00:50::11
Interface      eth0            external attached  192.168.50.11 fd00:50::11
Interface      veth-a1         pod      attached  192.168.50.11 fd00:50::11
Interface      veth-a2         pod      attached  192.168.50.11 fd00:50::11
XDP            eth0            not attached: skipped, XDP is slower than tc on virtual interfaces (veth)
Mode           masquerade edge; local pods detected by interface
NodePorts on   192.168.50.11 fd00:50::11
Source ports   1024-29999
Socket LB      host
Services       8 frontends, 4 backends, 0 frontends draining
Packets translated #
Packets returned #
Packets redirected #
Packets dropped #
Map            SERVICES #
Map            MAGLEV #
Map            BACKENDS #
Map            FLOWS4 #
Map            FLOWS6 #
Map            TRANSIENT4 #
Map            TRANSIENT6 #
Map            AFFINITY #
Map            SOURCE_RANGES #
Map            ADDRESSES #
Map            DEVICES #
Map            FRAGMENTS #
Map            HELD_FRAGMENTS #
Map            OWN_ANSWERS #
Map            INHERITED #
";

fn start() -> Result<Rig> {
    let rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080);
    let web = web.pods(&[rig.pod(0, 1)?]);
    rig.start(&[&web])
}

/// The output of `status` with placeholders for values that vary.
fn screen(rig: &Rig, agent: &Agent) -> Result<String> {
    let pins = rig.node(0)?.bpf().display().to_string();
    let line = |line: &str| {
        let (name, value) = line.split_at_checked(15).unwrap_or((line, ""));
        match name.split_whitespace().next() {
            Some("Agent") => {
                let digits = |c: char| c.is_ascii_digit();
                let parts: Vec<_> = value.split(digits).filter(|part| !part.is_empty()).collect();
                format!("{name}{}", parts.join("#"))
            }
            Some("Last") => format!("{name}#"),
            Some("Pins") if value.starts_with(&pins) => format!("{name}PINS"),
            Some("Packets") => {
                let words: Vec<_> = line.split_whitespace().take(2).collect();
                format!("{:<14} #", words.join(" "))
            }
            Some("Map") => {
                format!("{name}{} #", value.split_whitespace().next().unwrap_or_default())
            }
            _ => line.to_owned(),
        }
    };
    let said = agent.command(&["status"])?;
    Ok(said.lines().map(|text| line(text) + "\n").collect::<Vec<_>>().concat())
}

#[test]
fn status_is_one_screen_with_the_agent_running_and_dead() -> Result<()> {
    let mut rig = start()?;
    let mut agent = rig.take_agent(0)?;
    shows(&rig, &agent, SCREEN)?;
    attached_programs_are_listed(&agent)?;
    agent.kill9()?;
    let dead = SCREEN.replace(
        "running (process #)",
        "not running (data path active with the last synced state)",
    );
    shows(&rig, &agent, &dead)
}

/// Waits for this output, because some of its values are written once a second.
fn shows(rig: &Rig, agent: &Agent, expected: &str) -> Result<()> {
    wait_until_ok(SOON, "the screen of status", || {
        let said = screen(rig, agent)?;
        ensure!(said == expected, "status prints:\n{said}instead of:\n{expected}");
        Ok(())
    })
}

/// Checks that `--verbose` lists the programs at each hook of interfaces and sockets by name and id.
fn attached_programs_are_listed(agent: &Agent) -> Result<()> {
    let said = agent.command(&["status", "--verbose"])?;
    let places = ["ingress", "egress"].into_iter().map(|place| ("eth0", place));
    for (at, place) in places.chain(SOCKET_HOOKS.map(|hook| ("sockets", hook))) {
        let begin = format!("Programs       {at:<15} {place:<12} ");
        let line = said.lines().find_map(|line| line.strip_prefix(&begin));
        // The kernel keeps 15 characters of a name.
        let ours =
            if at == "eth0" { format!("external_{place:.6} (") } else { format!("{place} (") };
        let is_ours = line.is_some_and(|line| line.contains(&ours));
        ensure!(is_ours, "nothing of ours at {at} {place}:\n{said}");
    }
    Ok(())
}

/// An unusable field is named, counted and ignored; the rest of the object is served.
#[test]
fn fields_that_cannot_be_used_are_named_and_counted_until_they_are_corrected() -> Result<()> {
    let rig = start()?;
    let (node, agent) = (rig.node(0)?, rig.agent(0)?);
    let found = |problems: &[&str]| {
        wait_until_ok(SOON, "status and metrics about objects", || {
            let said = agent.exit_said(&["status"])?;
            let counted = agent.metric(&["lb_findings"])?;
            let lines: Vec<_> = said.lines().filter(|line| line.starts_with("Problem")).collect();
            let are_named = problems.iter().all(|part| lines.iter().any(|it| it.contains(part)));
            let are_all =
                lines.len() == problems.len() && (counted - problems.len() as f64).abs() < 0.5;
            ensure!(are_named && are_all, "{counted} counted:\n{said}");
            Ok(())
        })
    };
    let node_problem = r#"Node node-a: status.addresses[2]: "ten" is not an address"#;
    let service_problem = r#"Service default/late: spec.externalIPs[0]: "127.0.0.7""#;
    found(&[])?;
    let mut object = node_object(node);
    if let Some(addresses) = object["status"]["addresses"].as_array_mut() {
        addresses.push(json!({"type": "InternalIP", "address": "ten"}));
    }
    rig.manifests().write(node.name(), &[object])?;
    let service = |external: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "late"},
            "spec": {"clusterIP": "10.96.0.77", "ports": [{"port": 80}], "externalIPs": [external]},
        })
    };
    rig.manifests().write("late", &[service("127.0.0.7")])?;
    found(&[node_problem, service_problem])?;
    for message in ["Node has a problem", "Service is only partly served"] {
        ensure!(
            agent.log_end(1_000).matches(message).count() == 1,
            "{message:?} is not in the log once"
        );
    }
    rig.manifests().write("late", &[service("203.0.113.77")])?;
    rig.manifests().node(node)?;
    found(&[])
}

/// Contract 6.1, with as many Services as a large cluster has: each costs little memory, and is answered as fast as a
/// single one.
#[test]
fn health_checks_of_thousands_of_services_cost_little_memory_and_time() -> Result<()> {
    let rig = start()?;
    let (node, agent) = (rig.node(0)?, rig.agent(0)?);
    let resident = || agent.metric(&["process_resident_memory_bytes"]);
    let ask = |number: u16, address| -> Result<()> {
        let to = SocketAddr::new(address, FIRST_CHECK + number);
        let (status, body) = http::get(rig.client().home(), to, "/")?;
        ensure!(
            status == 503 && body.contains(&format!("checked-{number:04}\"")),
            "{status}: {body}"
        );
        Ok(())
    };
    let publish = |count: u16| -> Result<()> {
        let checked: Vec<Value> = (0..count).map(checked_service).collect();
        rig.manifests().write("checked", &checked)?;
        let answers = |address| {
            wait_until_ok(SOON, "the last of them is answered for", || ask(count - 1, address))
        };
        node.addresses().both().into_iter().try_for_each(answers)
    };
    // The fastest of several, because other load on the machine makes answers only slower.
    let quickest = |all: bool| -> Result<Duration> {
        let mut quickest = Duration::MAX;
        for number in (0..CHECKED).step_by(10) {
            let began = Instant::now();
            let address = node.addresses().both()[usize::from(number / 10 % 2)];
            ask(if all { number } else { 0 }, address)?;
            quickest = quickest.min(began.elapsed());
        }
        Ok(quickest)
    };
    publish(1)?;
    let alone = quickest(false)?;
    let before = resident()?;
    publish(CHECKED)?;
    let among = quickest(true)?;
    let grown = resident()? - before;
    println!(
        "{grown} bytes for {CHECKED} health checks; an answer takes {among:?}, alone {alone:?}"
    );
    ensure!(grown < MEMORY, "{grown} bytes more");
    ensure!(among < alone * SLOWER, "an answer takes {among:?}, alone {alone:?}");
    Ok(())
}

fn checked_service(number: u16) -> Value {
    let (high, low) = (number / 250 + 10, number % 250 + 1);
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("checked-{number:04}")},
        "spec": {
            "type": "LoadBalancer", "externalTrafficPolicy": "Local",
            "clusterIP": format!("10.96.{high}.{low}"), "ports": [{"port": 80}],
            "healthCheckNodePort": FIRST_CHECK + number,
        },
    })
}

/// The name of a Service can be looked up as soon as the Service is answered.
#[test]
fn names_are_there_when_rows_are() -> Result<()> {
    let rig = start()?;
    for number in 0..8 {
        let name = format!("late-{number}");
        let late = Service::new(&name, 50 + number)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
        rig.manifests().apply(&late)?;
        until(rig.pod(0, 0)?, Ask::udp(late.frontend(Family::V6)), Result::is_ok)?;
        let said = rig.agent(0)?.command(&["lb", "list"])?;
        ensure!(said.contains(&format!("default/{name}")), "{name} has no name yet:\n{said}");
    }
    Ok(())
}
