//! An agent with a memory limit: the kernel charges full tables to it, and neither this agent nor its successor is
//! killed.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_agent::maps::{MapShape, Maps, SHAPES, Table};
use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use lb_common::flow::{Flow, FlowKey, Kind, Side, Tuple};
use lb_tests::agent::Agent;
use lb_tests::campaign;
use lb_tests::manifest::Service;
use lb_tests::memory::MemoryLimit;
use lb_tests::rig::{Rig, TARGET, askers};
use lb_tests::topology::{self, Topology};
use lb_tests::traffic::PAUSE;
use lb_tests::wait::wait_until_ok;
use nix::time::{ClockId, clock_gettime};

/// A typical memory limit of clusters for an agent, in bytes.
const LIMIT: u64 = 128 << 20;
/// The manifest with its limit, and the memory besides the maps in ADR 0032: agent, programs and verifier.
const MANIFEST: &str = include_str!("../../deploy/daemonset.yaml");
const OTHER: u64 = 64 << 20;
/// The number of times that the agent is killed with full tables, in the short and in the long form.
const KILLS: [usize; 2] = [2, 3];
const NODE_PORT: u16 = 30_080;
/// The number of flows in a table, the factor by which it grows later, and the limit in bytes for the memory of a list
/// command for each flow.
const FEW: u32 = 16_384;
const GROWTH: u32 = 8;
const EACH: u64 = 64;
/// The deadline for the first sweep, on a machine under load.
const SWEEP: Duration = Duration::from_secs(90);

/// The memory limit of the manifest, in bytes.
fn limit_of_the_manifest() -> Result<u64> {
    let mut words = MANIFEST.split("limits: {memory: ").skip(1);
    let number = words.next().and_then(|rest| rest.split_once("Mi}")).context("limits")?.0;
    ensure!(words.next().is_none(), "the manifest has several limits");
    Ok(number.parse::<u64>()? << 20)
}

/// A limit that makes tables smaller. In a campaign also that of the manifest, in which the default sizes fit.
#[test]
fn full_tables_fit_the_memory_limit() -> Result<()> {
    let manifest = limit_of_the_manifest()?;
    campaign::size(&[LIMIT][..], &[LIMIT, manifest]).iter().try_for_each(|limit| fit(*limit))
}

/// The documents must contain the size that the maps have.
#[test]
fn documents_state_the_memory_of_full_maps() -> Result<()> {
    let full: u64 = SHAPES.iter().map(|shape| shape.bytes(shape.entries)).sum();
    let full = full.div_ceil(1 << 20);
    let manifest = format!("Full tables of the default sizes take {full} MiB");
    ensure!(MANIFEST.contains(&manifest), "the manifest does not say {manifest:?}");
    let decision = include_str!("../../docs/adr/0032-memory-limit.md");
    let figure = format!("Full maps of the default sizes take {full} MiB");
    ensure!(decision.contains(&figure), "ADR 0032 does not say {figure:?}");
    ensure!(limit_of_the_manifest()? > (full << 20) + OTHER, "the manifest's limit is too small");
    Ok(())
}

fn fit(bytes: u64) -> Result<()> {
    let rig = Rig::build(Topology::builder(topology::Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.pods(&[rig.pod(0, 1)?, rig.pod(1, 0)?]);
    let mut rig = rig.start(&[&web])?;
    let limit = MemoryLimit::new("full", bytes)?;
    let mut agent = rig.take_agent(0)?;
    // Its existing maps are charged to no limit; those that it creates next are charged to this one.
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    agent.limit_memory(&limit);
    agent.start_again()?;
    has_problem(&agent, false)?;
    let mut loads = Vec::new();
    for (from, question) in askers(&rig, &web, NODE_PORT)? {
        for kept in [true, false] {
            let load = from.peer().load(question, kept, PAUSE)?;
            loads.push((format!("{} asks {question:?}, kept: {kept}", from.name()), load));
        }
    }
    let maps = Maps::open(&rig.node(0)?.bpf().join(LAYOUT).join("maps"))?;
    let [room4, room6] = maps.flows().capacities()?;
    ensure!(room4 >= 16_384 && room6 >= 16_384, "{room4} and {room6} flows have room");
    if bytes >= limit_of_the_manifest()? {
        let defaults = ["FLOWS4", "FLOWS6"].map(|name| SHAPES.iter().find(|it| it.name == name));
        let defaults = defaults.map(|shape| shape.map(|shape| shape.entries));
        ensure!(defaults == [Some(room4), Some(room6)], "{room4} and {room6} are no default sizes");
    }
    fill(&maps, room4, true)?;
    fill(&maps, room6, false)?;
    let [short, long] = KILLS;
    for _ in 0..campaign::size(short, long) {
        agent.kill9()?;
        agent.start_again()?;
        wait_until_ok(SWEEP, "a sweep of the full tables has found them full", || {
            agent.ensure_running()?;
            let entries = agent.metric(&["lb_map_entries", "\"FLOWS4\""])?;
            ensure!(entries >= f64::from(room4) * 0.9, "{entries} of {room4} entries");
            Ok(())
        })?;
        // As an operator runs it in the agent's container.
        for arguments in [&["ct", "list"][..], &["status"]] {
            let lines = agent.lines_within(&limit, arguments)?;
            ensure!(lines > 5, "{lines} lines of {arguments:?}");
        }
    }
    ensure!(limit.killed()? == 0, "the kernel killed an agent");
    let mut answers = 0;
    for (what, load) in loads {
        answers += load.finish_without_loss().context(what)?.answered();
    }
    is_as_computed(&limit, bytes, [room4, room6])?;
    campaign::figure(&format!("limit of {} MiB: answers", bytes >> 20), answers, "answers");
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    Ok(())
}

/// The memory charged with full flow tables is at least what the tables need, and leaves a part of the limit.
fn is_as_computed(limit: &MemoryLimit, bytes: u64, [room4, room6]: [u32; 2]) -> Result<()> {
    let size = |shape: &MapShape| match shape.name {
        "FLOWS4" => shape.bytes(room4),
        "FLOWS6" => shape.bytes(room6),
        _ => 0,
    };
    let (tables, taken): (u64, u64) = (SHAPES.iter().map(size).sum(), limit.taken()?);
    // Only whole pages are charged, and both tables are at least nine tenths full.
    ensure!(taken > tables / 10 * 8, "{taken} bytes, but both tables alone take {tables}");
    ensure!(taken < bytes - bytes / 16, "{taken} of {bytes} bytes are taken");
    let mebibytes = bytes >> 20;
    let figure = |what: &str, value: u64| {
        campaign::figure(&format!("limit of {mebibytes} MiB: {what}"), value >> 20, "MiB");
    };
    figure("taken beside full tables of flows", taken);
    figure("both tables as ADR 0032 computes them", tables);
    figure("largest amount taken", limit.peak()?);
    Ok(())
}

/// The requested flow tables do not fit into the limit.
#[test]
fn a_limit_below_the_chosen_maps_is_a_problem() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(topology::Shape::Routed).nodes(1))?.start(&[])?;
    let limit = MemoryLimit::new("chosen", LIMIT)?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    agent.limit_memory(&limit);
    agent.set_flag("--map-size", "FLOWS=1048576");
    agent.start_again()?;
    has_problem(&agent, true)?;
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    Ok(())
}

/// Waits until `status` names the memory limit as too small, and metric and health count it; or until none of these
/// does.
fn has_problem(agent: &Agent, expected: bool) -> Result<()> {
    wait_until_ok(SWEEP, "status about the memory limit", || {
        let said = agent.exit_said(&["status"])?;
        let is_named = said.contains("Problem        memory limit of the agent is 128 MiB");
        ensure!(is_named == expected, "expected: {expected}, not {said}");
        agent.has_problems(usize::from(expected))
    })
}

/// An operator runs lists in the agent's container, where full tables take a large part of the memory limit.
#[test]
fn a_list_of_flows_takes_little_memory_for_each() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(topology::Shape::Routed).nodes(1))?;
    rig.start_agents(&[])?;
    let agent = rig.agent(0)?;
    let maps = Maps::open(&rig.node(0)?.bpf().join(LAYOUT).join("maps"))?;
    for arguments in [&["ct", "list"][..], &["ct", "list", "-o", "json"]] {
        fill(&maps, FEW, true)?;
        let (few, small) = agent.peak_memory(arguments)?;
        fill(&maps, FEW * GROWTH, true)?;
        let (many, large) = agent.peak_memory(arguments)?;
        ensure!(
            few >= FEW as usize && many > few * (GROWTH as usize - 1),
            "{few} lines, then {many}"
        );
        let grown = large.saturating_sub(small);
        ensure!(
            grown < u64::from(FEW * (GROWTH - 1)) * EACH,
            "{grown} bytes more of {arguments:?}"
        );
        let (code, said) = agent.unread(arguments)?;
        ensure!(code == 0 && said.is_empty(), "`| head` of {arguments:?}: {code}: {said}");
        drop(agent.command(&["ct", "flush", "--all"])?);
        ensure!(agent.command(&["ct", "list"])? == "no flows\n", "a flush leaves flows");
    }
    Ok(())
}

/// Fills a protected table with open connections of other clients.
fn fill(maps: &Maps, capacity: u32, v4: bool) -> Result<()> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos() as u64;
    let (to, backend) = if v4 {
        (Ip::v4([10, 96, 0, 250]), Ip::v4([10, 244, 7, 7]))
    } else {
        (Ip::v6([0xfd; 16]), Ip::v6([0xfe; 16]))
    };
    for number in 0..capacity {
        let [_, a, b, c] = number.to_be_bytes();
        let from = if v4 {
            Ip::v4([198, a, b, c])
        } else {
            Ip::v6([a, b, c, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9])
        };
        let from = Endpoint::new(from, Port::new(9_999));
        let tuple = Tuple::new(from, Endpoint::new(to, Port::new(80)));
        let key = FlowKey::new(tuple, Protocol::TCP, Side::INGRESS);
        let to = Tuple::new(from, Endpoint::new(backend, Port::new(8_080)));
        let mut flow = Flow::new(to, Kind::FORWARD, now);
        flow.flags |= Flow::PROTECTED;
        flow.shown.established = 1;
        maps.flows().restore(&key, &flow)?;
    }
    let mut found = 0;
    maps.flows().walk(Table::Protected, |key, _| found += u32::from(key.is_v4() == v4))?;
    // Connections of the loads take some of the entries.
    ensure!(found >= capacity / 10 * 9, "{found} of {capacity} entries exist");
    Ok(())
}
