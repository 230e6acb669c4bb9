//! Upgrades from a data path of another layout in difficult cases: after an attempt that stopped halfway, and with XDP.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, MapData};
use lb_agent::datapath::LAYOUT;
use lb_tests::agent::Agent;
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, askers, matrix};
use lb_tests::topology::{Family, Member, Node, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::traffic::closing::resets;
use lb_tests::wait::wait_until_ok;

const NODE_PORT: u16 = 30_080;
const SOON: Duration = Duration::from_secs(30);
/// The directory to which this version's pins are renamed, so that they look like those of another version.
const OTHER: &str = "v0";
/// The same for a third version.
const THIRD: &str = "v1";

in_both_shapes!(late_entries_are_carried_over_by_the_next_start);

/// An agent was killed after it had taken over the last link, and before it copied what packets had written meanwhile:
/// an agent of this version, and then one of a third version.
fn late_entries_are_carried_over_by_the_next_start(shape: Shape) -> Result<()> {
    let rig = Rig::build(Topology::builder(shape))?;
    // The client pod is not a backend: a hairpin answer may be lost when programs are replaced (ADR 0005).
    let pods = [rig.pod(0, 1)?, rig.pod(1, 0)?, rig.pod(1, 1)?];
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT).pods(&pods);
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let (mut kept, node) = (Vec::new(), rig.node(0)?);
    for (from, question) in askers(&rig, &web, NODE_PORT)? {
        let conversation = from.peer().keep(question)?;
        let server = conversation.ask().with_context(|| format!("{question:?}"))?.server;
        kept.push((from, question, conversation, server));
    }
    for layout in [LAYOUT, THIRD] {
        end_halfway(node, layout)?;
        agent.start_again()?;
        // No question was sent since then: these flows were carried over.
        let flows = agent.command(&["ct", "list", "--no-headers"])?;
        ensure!(!flows.trim().is_empty(), "no flow is known, {layout} ended halfway");
        for (from, question, conversation, server) in &kept {
            let asks = format!("{} asks {} by {}", from.name(), question.to, question.protocol);
            let what = || format!("{asks}, {layout} ended halfway");
            let answer = conversation.ask().with_context(what)?;
            ensure!(answer.server == *server, "{}: {answer:?} instead of {server}", what());
            drop(ask(from, *question)?);
        }
        is_alone(node)?;
        agent.stop()?;
    }
    Ok(())
}

/// A directory in place of a link's pin cannot be replaced. The other interfaces are taken over all the same, and the
/// agent reports the interface as a problem.
#[test]
fn a_device_that_takes_no_programs_does_not_hold_the_others_up() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let node = rig.node(0)?;
    let (ours, device) = (node.bpf().join(LAYOUT), rig.pod(0, 1)?.device());
    fs::rename(&ours, node.bpf().join(OTHER))?;
    let pin =
        ours.join("links").join(format!("{}-ingress", node.device_number(device, "ifindex")?));
    fs::create_dir_all(&pin)?;
    agent.start_again()?;
    is_alone(node)?;
    for (family, protocol) in matrix() {
        drop(ask(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)))?);
    }
    let named = format!("Problem        interface {device}: programs cannot be attached");
    is_problem(&agent, &named, true)?;
    fs::remove_dir(&pin)?;
    wait_until_ok(SOON, "the interface is served", || {
        ensure!(pin.is_file(), "{} is no link", pin.display());
        drop(ask(rig.pod(0, 1)?, Ask::tcp(web.frontend(Family::V4)).within(500))?);
        Ok(())
    })?;
    is_problem(&agent, &named, false)
}

/// Waits until `status` names a problem with this line and ends with 1, and the metric counts it; or until none of this
/// holds.
fn is_problem(agent: &Agent, line: &str, expected: bool) -> Result<()> {
    wait_until_ok(SOON, "status about the problem", || {
        let (code, said) = agent.ended(&["status"])?;
        let counted = agent.metric(&["lb_node_problems"])?;
        let found = (said.contains(line), code, counted > 0.5);
        ensure!(found == (expected, i32::from(expected), expected), "{found:?}: {said}");
        let is_detached = said.contains("NOT attached");
        ensure!(is_detached == expected, "{said}");
        Ok(())
    })
}

/// Moves every link to the pins of `layout`. Links through which answers pass get the suffix `-old`, as if their
/// successors were not attached yet.
fn end_halfway(node: &Node, layout: &str) -> Result<()> {
    let other = node.bpf().join(OTHER);
    fs::rename(node.bpf().join(LAYOUT), &other)?;
    let links = node.bpf().join(layout).join("links");
    fs::create_dir_all(&links)?;
    let external = format!("{}-ingress", node.device_number("eth0", "ifindex")?);
    for link in fs::read_dir(other.join("links"))? {
        let link = link?;
        let mut name: OsString = link.file_name();
        let text = name.to_str().context("a name in UTF-8")?;
        let has_answers =
            text.ends_with("-egress") || text == external || text.starts_with("peername");
        if has_answers {
            name.push("-old");
        }
        fs::rename(link.path(), links.join(name))?;
    }
    Ok(())
}

/// Checks that no pin of another layout and no old link is left.
fn is_alone(node: &Node) -> Result<()> {
    for layout in [OTHER, THIRD] {
        ensure!(!node.bpf().join(layout).exists(), "{layout} still exists");
    }
    for link in fs::read_dir(node.bpf().join(LAYOUT).join("links"))? {
        let name = link?.file_name().display().to_string();
        ensure!(!name.ends_with("-old"), "{name} still exists");
    }
    Ok(())
}

/// An interface has only one XDP program: ours replaces the old one in its own link.
#[test]
fn the_xdp_program_of_another_layout_is_replaced_at_once() -> Result<()> {
    let builder = Topology::builder(Shape::Routed).without_checksum_offload().polling();
    let mut rig = Rig::build(builder)?;
    let near = Service::new("near", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let far = Service::new("far", 11)?.port(80, TARGET).node_port(NODE_PORT + 1);
    rig.manifests().apply(&near.pods(&[rig.pod(0, 1)?]))?;
    rig.manifests().apply(&far.pods(&[rig.pod(1, 1)?]))?;
    let config = rig.configuration("acceleration: native")?;
    rig.start_agents(&[&config])?;
    let mut agent = rig.take_agent(0)?;
    until_attached(&agent)?;
    let node = rig.node(0)?;
    let link = |layout: &str| -> Result<_> {
        let name = format!("{}-xdp", node.device_number("eth0", "ifindex")?);
        link_and_program(node, &node.bpf().join(layout).join("links").join(name))
    };
    // Resets of a node show a reply that was not translated, those of a pod a source that changed (docs/flaky.md).
    let senders: [&Member; 5] =
        [rig.client(), rig.node(0)?, rig.node(1)?, rig.pod(0, 1)?, rig.pod(1, 1)?];
    let sent = || senders.iter().map(|member| resets(member)).collect::<Result<Vec<u64>>>();
    let before = sent()?;
    let mut loads = Vec::new();
    for (family, protocol) in matrix() {
        for port in [NODE_PORT, NODE_PORT + 1] {
            for kept in [true, false] {
                let question = Ask::new(protocol, node.addresses().socket(family, port));
                loads.push((question, kept, rig.client().peer().load(question, kept, 2)?));
            }
        }
    }
    for _ in 0..3 {
        agent.stop()?;
        fs::rename(node.bpf().join(LAYOUT), node.bpf().join(OTHER))?;
        let (before, others) = link(OTHER)?;
        let marked = endpoints(&node.bpf().join(OTHER))?;
        agent.start_again_with(&[("RUST_LOG", "lb_agent=debug")])?;
        until_attached(&agent)?;
        is_verified_before_the_switch(&agent)?;
        let (after, ours) = link(LAYOUT)?;
        ensure!(before == after && others != ours, "link {before}, then {after}: another one");
        let marks = (marked, endpoints(&node.bpf().join(LAYOUT))?);
        ensure!(marks.0 == marks.1 && marked > 0, "{marks:?} marks of backends");
        is_alone(node)?;
    }
    let mut lost = Vec::new();
    for (question, kept, load) in loads {
        let what = format!("{question:?}, kept: {kept}");
        match load.finish_without_loss() {
            Ok(tally) => ensure!(tally.servers.len() == 1, "{what}: {tally:?}"),
            Err(error) => lost.push(format!("{what}: {error:#}")),
        }
    }
    let names: Vec<&str> = senders.iter().map(|member| member.name()).collect();
    ensure!(lost.is_empty(), "{lost:#?}; resets of {names:?} before {before:?}, now {:?}", sent()?);
    Ok(())
}

/// Checks that the programs at tc did not wait for the verifier to accept the XDP program: in that time the programs of
/// two builds would handle one packet.
fn is_verified_before_the_switch(agent: &Agent) -> Result<()> {
    let log = agent.log_end(500);
    let run = log.rsplit("initial sync complete").next().context("the last run")?;
    let verified = run.find("program verified program=\"external_xdp\"");
    let switched = run.find("data path of another layout replaced");
    ensure!(verified.is_some() && verified < switched, "{verified:?}, {switched:?}: {run}");
    Ok(())
}

/// The number of entries by which packets of pods to backends are recognised.
fn endpoints(layout: &Path) -> Result<u32> {
    let map = MapData::from_pin(layout.join("maps/BACKEND_FILTER"))?;
    let map: Array<MapData, u64> = aya::maps::Map::Array(map).try_into()?;
    map.iter().map(|word| Ok(word?.count_ones())).sum()
}

fn until_attached(agent: &Agent) -> Result<()> {
    wait_until_ok(SOON, "XDP redirects", || {
        let status = agent.command(&["status"])?;
        let line = status.lines().find(|line| line.starts_with("XDP")).context("no line of XDP")?;
        ensure!(line.contains("attached, redirects"), "{line}");
        Ok(())
    })
}

/// The ids of a pinned link and of its program.
fn link_and_program(node: &Node, pin: &Path) -> Result<(String, String)> {
    let path = pin.to_str().context("a path in UTF-8")?;
    let said = node.netns().tool("bpftool", &["link", "show", "pinned", path])?;
    let mut words = said.split_whitespace();
    let link = words.next().context("no link")?.to_owned();
    let program = words.skip_while(|word| *word != "prog").nth(1).context("no program")?;
    Ok((link, program.to_owned()))
}
