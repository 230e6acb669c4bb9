//! Programs of another `--bpf-dir` at each hook that our programs use: an agent refuses to start beside them and names
//! the command that removes them.
//!
//! Afterwards a deleted Service is no longer answered.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::{LAYOUT, SOCKET_HOOKS};
use lb_tests::agent::{Agent, Source};
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, until};
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;
use nix::mount::{MsFlags, mount, umount};

const NODE_PORT: u16 = 30_080;
/// The deadline for routes to frontends.
const SOON: Duration = Duration::from_mins(1);
/// The text that every refusal contains.
const REFUSED: &str = "has programs of another lb-agent";

/// Starts a node whose agent has served a Service, and returns the other directory for the next start.
fn start() -> Result<(Rig, Service, PathBuf)> {
    let builder = Topology::builder(Shape::Routed).nodes(1).without_checksum_offload().polling();
    let mut rig = Rig::build(builder)?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    let config = rig.configuration("acceleration: native")?;
    rig.start_agents(&[&config])?;
    for (from, question) in askers(&rig, &web)? {
        drop(ask(from, question)?);
    }
    let other = rig.node(0)?.bpf().join("other");
    Ok((rig, web, other))
}

/// The clients: packets of each meet another hook first (tcx, a socket hook, XDP).
fn askers<'a>(rig: &'a Rig, web: &Service) -> Result<[(&'a Member, Ask); 3]> {
    let (pod, node, client): (&Member, &Member, &Member) =
        (rig.pod(0, 0)?, rig.node(0)?, rig.client());
    let cluster_ip = Ask::tcp(web.frontend(Family::V4));
    let node_port = Ask::tcp(rig.node(0)?.addresses().socket(Family::V4, NODE_PORT));
    Ok([(pod, cluster_ip), (node, cluster_ip), (client, node_port)])
}

/// Returns the node's routes to frontends.
fn routes(rig: &Rig) -> Result<String> {
    rig.node(0)?.netns().tool("ip", &["route", "show", "table", "27746"])
}

/// Returns the node's routes to frontends once there are any: the agent adds them in a task of its own.
fn routes_that_come(rig: &Rig) -> Result<String> {
    wait_until_ok(SOON, "the node has routes to frontends", || {
        let there = routes(rig)?;
        ensure!(!there.is_empty(), "none");
        Ok(there)
    })
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}

/// Checks that the agent refuses the other directory with a message that contains all of `parts`.
fn is_refused(agent: &mut Agent, other: &Path, parts: &[&str]) -> Result<String> {
    agent.set_flag("--bpf-dir", text(other)?);
    agent.spawn_again(&[])?;
    agent.refuses_to_run(parts)?;
    Ok(agent.log_end(1))
}

/// Cleans up `here`, and serves from the other directory; a deleted Service must then be unreachable for all clients.
fn serves_alone(
    rig: &Rig,
    web: &Service,
    agent: &mut Agent,
    here: &Path,
    other: &Path,
) -> Result<()> {
    agent.set_flag("--bpf-dir", text(here)?);
    drop(agent.command(&["cleanup"])?);
    agent.set_flag("--bpf-dir", text(other)?);
    agent.start_again()?;
    for (from, question) in askers(rig, web)? {
        drop(ask(from, question)?);
    }
    rig.manifests().delete(web)?;
    for (from, question) in askers(rig, web)? {
        until(from, question.within(200), Result::is_err)?;
        ensure!(from.peer().ask(question.within(200)).is_err(), "{} is answered", from.name());
    }
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    Ok(())
}

#[test]
fn programs_whose_pins_cannot_be_seen_are_refused_by_their_names() -> Result<()> {
    let (mut rig, web, other) = start()?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let here = rig.node(0)?.bpf().to_owned();
    // This mount hides the pins, as with an agent in another mount namespace.
    mount(Some("cover"), &here.join(LAYOUT), Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    let parts = [REFUSED, "not visible from here", "stop that agent, then run `lb-agent cleanup`"];
    let refused = is_refused(&mut agent, &other, &parts);
    // In a container only this command has the right to look programs up.
    let init = agent.exit_code(&["init"]);
    umount(&here.join(LAYOUT))?;
    drop(refused?);
    let (code, said) = init?;
    ensure!(code == 1 && parts.iter().all(|part| said.contains(part)), "{code}: {said}");
    serves_alone(&rig, &web, &mut agent, &here, &other)
}

#[test]
fn programs_of_an_agent_that_runs_are_refused_by_its_process() -> Result<()> {
    let (mut rig, web, other) = start()?;
    let mut agent = rig.take_agent(0)?;
    let here = rig.node(0)?.bpf().to_owned();
    let source = Source::Manifests(rig.manifests().directory());
    let mut second = Agent::spawn(rig.node(0)?, source, &[])?;
    second.refuses_to_run(&["in use by another agent"])?;
    let runs = format!("stop that agent (process {}), then run this agent with", agent.id());
    drop(is_refused(&mut second, &other, &[REFUSED, text(&here)?, &runs])?);
    for (from, question) in askers(&rig, &web)? {
        drop(ask(from, question)?);
    }
    agent.stop()?;
    serves_alone(&rig, &web, &mut second, &here, &other)
}

/// Routes, the nft table and the settings of `lo` belong to the network namespace, not to a directory.
#[test]
fn cleanup_of_another_directory_keeps_what_a_running_agent_uses() -> Result<()> {
    let (mut rig, web, other) = start()?;
    let mut agent = rig.take_agent(0)?;
    let here = rig.node(0)?.bpf().to_owned();
    let before = routes_that_come(&rig)?;
    agent.set_flag("--bpf-dir", text(&other)?);
    let said = agent.command(&["cleanup"])?;
    ensure!(said.contains("kept routes") && said.contains(text(&here)?), "{said}");
    let now = routes(&rig)?;
    ensure!(now == before, "routes now: {now}");
    agent.set_flag("--bpf-dir", text(&here)?);
    for (from, question) in askers(&rig, &web)? {
        drop(ask(from, question)?);
    }
    agent.stop()?;
    let said = agent.command(&["cleanup"])?;
    ensure!(said.contains("removed routes to frontends"), "{said}");
    Ok(())
}

/// A container without the network of the host sees the pins, but its own rules, routes, interfaces and settings.
#[test]
fn commands_in_another_network_namespace_do_not_take_it_for_the_served_one() -> Result<()> {
    let (mut rig, web, _) = start()?;
    let mut agent = rig.take_agent(0)?;
    let client = rig.client().home();
    let [pod, frontend] = [rig.pod(0, 0)?.ip(Family::V4), web.frontend(Family::V4).ip()];
    let explain = ["explain", &pod.to_string(), &SocketAddr::new(frontend, 80).to_string()];
    for verb in [&["takeover"][..], &explain] {
        let (code, said) = agent.ended_in(client, verb)?;
        ensure!(code == 3 && said.contains("another network namespace"), "{code}: {said}");
    }
    let (_, said) = agent.ended_in(client, &["status"])?;
    ensure!(said.contains("Namespace"), "{said}");
    drop(routes_that_come(&rig)?);
    agent.stop()?;
    let (code, said) = agent.ended_in(client, &["cleanup"])?;
    ensure!(code == 0 && said.contains("of another network namespace"), "{code}: {said}");
    ensure!(
        !routes(&rig)?.is_empty(),
        "the routes of the node were removed from another namespace"
    );
    let said = agent.command(&["cleanup"])?;
    ensure!(said.contains("removed routes to frontends"), "{said}");
    // No table is an error of `ip`.
    let left = routes(&rig).unwrap_or_default();
    ensure!(left.is_empty(), "routes are left: {left}");
    Ok(())
}

/// The other pins were removed, so that only the XDP program is left.
#[test]
fn xdp_program_that_is_left_is_refused() -> Result<()> {
    let place = format!("(XDP) {REFUSED}");
    is_refused_with_links(|name| name.ends_with("-xdp"), &place)
}

/// The other pins were removed, so that only the socket hooks are left.
#[test]
fn socket_hooks_that_are_left_are_refused() -> Result<()> {
    let place = format!("socket hook connect4 {REFUSED}");
    is_refused_with_links(|name| SOCKET_HOOKS.contains(&name), &place)
}

fn is_refused_with_links(is_left: impl Fn(&str) -> bool, place: &str) -> Result<()> {
    let (mut rig, web, other) = start()?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let here = rig.node(0)?.bpf().to_owned();
    let mut left = 0;
    for link in fs::read_dir(here.join(LAYOUT).join("links"))? {
        let link = link?.path();
        let name = link.file_name().and_then(|name| name.to_str()).context("a name")?;
        if is_left(name) {
            left += 1;
        } else {
            fs::remove_file(&link)?;
        }
    }
    ensure!(left > 0, "no such link");
    let remedy = format!("`lb-agent cleanup --bpf-dir {}`", here.display());
    drop(is_refused(&mut agent, &other, &[place, &remedy])?);
    serves_alone(&rig, &web, &mut agent, &here, &other)
}

/// A program of ours was attached as a tc filter. No cleanup removes that, so the message must name the command that
/// does.
#[test]
fn program_in_a_filter_is_refused_until_its_remedy_was_carried_out() -> Result<()> {
    let (mut rig, web, other) = start()?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let here = rig.node(0)?.bpf().to_owned();
    let node = rig.node(0)?.netns();
    let device = rig.pod(0, 0)?.device();
    let objects = fs::read_dir(here.join(LAYOUT).join("programs"))?;
    let program = objects.flatten().map(|object| object.path().join("pod_ingress"));
    let program = program.into_iter().find(|pin| pin.exists()).context("the program's pin")?;
    drop(node.tool("tc", &["qdisc", "add", "dev", device, "clsact"])?);
    let filter =
        ["filter", "add", "dev", device, "ingress", "bpf", "direct-action", "object-pinned"];
    drop(node.tool("tc", &[&filter[..], &[text(&program)?]].concat())?);
    fs::remove_dir_all(here.join(LAYOUT).join("links"))?;
    let place = format!("interface {device} (tc filter) {REFUSED}");
    let said = is_refused(&mut agent, &other, &[&place, "remove it with `tc filter delete"])?;
    let remedy = said.split('`').find(|part| part.starts_with("tc ")).context(said.clone())?;
    let mut words = remedy.split(' ');
    let tool = words.next().context("a tool")?;
    drop(node.tool(tool, &words.collect::<Vec<_>>())?);
    serves_alone(&rig, &web, &mut agent, &here, &other)
}
