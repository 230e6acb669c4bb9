//! An agent with a memory limit: the kernel charges full tables to it, and that kills neither it nor the one after it.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_agent::maps::{Maps, Table};
use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use lb_common::flow::{Flow, FlowKey, Kind, Side, Tuple};
use lb_tests::agent::Agent;
use lb_tests::manifest::Service;
use lb_tests::memory::MemoryLimit;
use lb_tests::rig::{Rig, TARGET, askers};
use lb_tests::topology::{Shape, Topology};
use lb_tests::traffic::PAUSE;
use lb_tests::wait::wait_until_ok;
use nix::time::{ClockId, clock_gettime};

/// The memory that many clusters give an agent of a node.
const LIMIT: u64 = 128 << 20;
const NODE_PORT: u16 = 30_080;
/// Flows of a table, how many times as many there are later, and the bytes of memory that each one may cost who lists
/// them.
const FEW: u32 = 16_384;
const GROWTH: u32 = 8;
const EACH: u64 = 64;
/// How long the first sweep may take on a machine under load.
const SWEEP: Duration = Duration::from_secs(90);

#[test]
fn full_tables_fit_the_memory_limit() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.pods(&[rig.pod(0, 1)?, rig.pod(1, 0)?]);
    let mut rig = rig.start(&[&web])?;
    let limit = MemoryLimit::new("full", LIMIT)?;
    let mut agent = rig.take_agent(0)?;
    // Its maps are charged to nobody; those that it makes next are charged to the limit.
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
    let [room4, room6] = maps.flow_capacities()?;
    ensure!(room4 >= 16_384 && room6 >= 16_384, "{room4} and {room6} flows have room");
    fill(&maps, room4, true)?;
    fill(&maps, room6, false)?;
    for _ in 0..3 {
        agent.kill9()?;
        agent.start_again()?;
        wait_until_ok(SWEEP, "a sweep of the full tables has found them full", || {
            agent.ensure_running()?;
            let entries = agent.metric(&["lb_map_entries", "\"FLOWS4\""])?;
            ensure!(entries >= f64::from(room4) * 0.9, "{entries} of {room4} entries");
            Ok(())
        })?;
    }
    ensure!(limit.killed()? == 0, "the kernel killed an agent");
    for (what, load) in loads {
        drop(load.finish_without_loss().context(what)?);
    }
    writeln!(std::io::stdout(), "{room4} and {room6} flows in {} bytes", limit.taken()?)?;
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    Ok(())
}

/// Somebody wants more flows than the limit has room for.
#[test]
fn a_limit_below_the_chosen_maps_is_a_problem() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?.start(&[])?;
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

/// Waits until `status` names the memory limit as too small and ends with 1, and the metric counts it, or for neither.
fn has_problem(agent: &Agent, expected: bool) -> Result<()> {
    wait_until_ok(SWEEP, "what status says of the memory limit", || {
        let (code, said) = agent.ended(&["status"])?;
        let is_named = said.contains("Problem        memory limit of the agent is 128 MiB");
        let is_counted = agent.metric(&["lb_node_problems"])? > 0.5;
        let found = (is_named, code, is_counted);
        ensure!(found == (expected, i32::from(expected), expected), "{found:?}: {said}");
        Ok(())
    })
}

/// An operator runs lists in the agent's container, whose memory full tables have a large part of.
#[test]
fn a_list_of_flows_takes_little_memory_for_each() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
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

/// Puts open connections of other clients into a protected table until it is full.
fn fill(maps: &Maps, room: u32, v4: bool) -> Result<()> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?).as_nanos() as u64;
    let (to, backend) = if v4 {
        (Ip::v4([10, 96, 0, 250]), Ip::v4([10, 244, 7, 7]))
    } else {
        (Ip::v6([0xfd; 16]), Ip::v6([0xfe; 16]))
    };
    for number in 0..room {
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
        maps.restore_flow(&key, &flow)?;
    }
    let mut found = 0;
    maps.flows(Table::Protected, |key, _| found += u32::from(key.is_v4() == v4))?;
    // Connections of the loads have some of the room.
    ensure!(found >= room / 10 * 9, "{found} of {room} entries are there");
    Ok(())
}
