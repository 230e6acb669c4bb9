//! The agent's traces on its node: it ends within a second of SIGTERM, changes no sysctl, writes no service again when
//! it starts over existing maps, and leaves nothing in the kernel after `cleanup`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use aya::maps::{MapInfo, loaded_maps};
use aya::programs::{ProgramInfo, loaded_links, loaded_programs};
use lb_agent::datapath::{Direction, LAYOUT, attached_programs};
use lb_agent::maps::SHAPES;
use lb_agent::syscall::AttachedProgram;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Family, Node, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until;
use nix::net::if_::if_nameindex;

/// The limit for the time from SIGTERM to the end.
const SHUTDOWN: Duration = Duration::from_secs(1);
/// The largest number of stops until one was within the limit.
const STOPS: usize = 12;
/// The deadline for the kernel to free unused objects: it waits for RCU readers first.
const FREED: Duration = Duration::from_mins(1);

fn start() -> Result<(Rig, Service)> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080).pods(&rig.pods());
    Ok((rig.start(&[&web])?, web))
}

/// Contract 8.2: a start reads the maps, compares them, and finds them correct. Only one write marks that another run
/// has begun, so that flows look up their frontends again, whatever the previous run was doing when it ended.
#[test]
fn start_over_correct_maps_makes_one_write() -> Result<()> {
    let (mut rig, web) = start()?;
    let mut agent = rig.take_agent(0)?;
    let first = agent.metric(&["lb_map_operations"])?;
    ensure!(first > 10.0, "{first} writes for a Service");
    agent.kill9()?;
    agent.start_again()?;
    let again = agent.metric(&["lb_map_operations"])?;
    ensure!(again < 1.5, "{again} writes without a change");
    drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(Family::V4)))?);
    Ok(())
}

#[test]
fn cleanup_leaves_no_program_map_or_link() -> Result<()> {
    let (mut rig, _) = start()?;
    let mut agent = rig.take_agent(0)?;
    let pins = rig.node(0)?.bpf().join(LAYOUT);
    let programs = programs(&pins.join("programs"))?;
    let maps =
        SHAPES.iter().map(|shape| Ok(MapInfo::from_pin(pins.join("maps").join(shape.name))?.id()));
    let maps: BTreeSet<u32> = maps.collect::<Result<_>>()?;
    ensure!(attached(rig.node(0)?)?.len() >= 6, "{:?}", attached(rig.node(0)?)?);
    ensure!(programs.len() >= 10 && links_of(&programs) >= 10, "{programs:?} are attached");
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    // At once: a connection that begins now must not be translated.
    ensure!(attached(rig.node(0)?)?.is_empty(), "{:?} are attached", attached(rig.node(0)?)?);
    wait_until(FREED, "the kernel has none of our links, programs and maps", || {
        let alive = loaded_programs().flatten().any(|program| programs.contains(&program.id()))
            || loaded_maps().flatten().any(|map| maps.contains(&map.id()))
            || links_of(&programs) > 0;
        (!alive).then_some(())
    })?;
    Ok(())
}

/// The ids of the programs that are pinned below a directory.
fn programs(directory: &Path) -> Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for build in fs::read_dir(directory)? {
        for pin in fs::read_dir(build?.path())? {
            found.insert(ProgramInfo::from_pin(pin?.path())?.id());
        }
    }
    Ok(found)
}

/// The programs that are attached to interfaces of a node.
fn attached(node: &Node) -> Result<Vec<AttachedProgram>> {
    node.netns().run_in(|| {
        let mut found = Vec::new();
        for device in &if_nameindex()? {
            for direction in [Direction::Ingress, Direction::Egress] {
                found.extend(attached_programs(device.index(), direction)?);
            }
        }
        Ok(found)
    })?
}

/// The number of links in the kernel that run one of these programs.
fn links_of(programs: &BTreeSet<u32>) -> usize {
    loaded_links().flatten().filter(|link| programs.contains(&link.program_id())).count()
}

#[test]
fn agent_ends_within_a_second_and_cleanup_leaves_sysctls_as_they_were() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080).pods(&rig.pods());
    let before = sysctls(rig.node(0)?)?;
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    let during = sysctls(rig.node(0)?)?;
    let close_wait = Path::new("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait");
    let raised = during.get(close_wait).map(|value| value.trim());
    ensure!(raised == Some("3600"), "the agent has raised the timeout to {raised:?}");
    let mut stops = Vec::new();
    // On a busy machine the scheduler alone may take a second, so one fast stop out of several is enough.
    let is_quick = |stops: &[Duration]| stops.iter().any(|took| *took < SHUTDOWN);
    while stops.len() < 3 || stops.len() < STOPS && !is_quick(&stops) {
        for (family, protocol) in matrix() {
            drop(ask(rig.pod(0, 0)?, Ask::new(protocol, web.frontend(family)))?);
        }
        let began = Instant::now();
        agent.stop()?;
        stops.push(began.elapsed());
        agent.start_again()?;
    }
    println!("stopped within {stops:?}");
    ensure!(is_quick(&stops), "{stops:?}");
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    let after = sysctls(rig.node(0)?)?;
    let changed = before.iter().filter(|(path, value)| after.get(*path) != Some(value));
    let changed: Vec<_> = changed.collect();
    ensure!(changed.is_empty(), "sysctls have changed: {changed:?}");
    Ok(())
}

/// All sysctls of a node's network namespace, except for counters and random values.
fn sysctls(node: &Node) -> Result<BTreeMap<PathBuf, String>> {
    const NO_SETTINGS: [&str; 3] = ["nf_conntrack_count", "stable_secret", "tcp_fastopen_key"];
    let read = || {
        let (mut found, mut directories) = (BTreeMap::new(), vec![PathBuf::from("/proc/sys/net")]);
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory)? {
                let path = entry?.path();
                if path.is_dir() {
                    directories.push(path);
                } else if !NO_SETTINGS.iter().any(|name| path.ends_with(name))
                    && let Ok(value) = fs::read_to_string(&path)
                {
                    drop(found.insert(path, value));
                }
            }
        }
        anyhow::Ok(found)
    };
    let found = node.netns().run_in(read)??;
    ensure!(found.len() > 100, "only {} settings", found.len());
    Ok(found)
}
