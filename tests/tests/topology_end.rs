//! What an agent's end costs and leaves: a stop is quick, a start over what is there writes no service, and `cleanup` leaves no
//! program, map, link or setting.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use aya::maps::{MapInfo, loaded_maps};
use aya::programs::{ProgramInfo, loaded_links, loaded_programs};
use lb_agent::datapath::LAYOUT;
use lb_agent::maps::SHAPES;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask};
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until;

/// How long the kernel may take to free what nothing holds any more: it waits for readers first.
const FREED: Duration = Duration::from_secs(20);

fn start() -> Result<(Rig, Service)> {
    let rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080).pods(&rig.pods());
    Ok((rig, web))
}

#[test]
fn a_stop_takes_less_than_a_second() -> Result<()> {
    let (rig, web) = start()?;
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    let began = Instant::now();
    agent.stop()?;
    ensure!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
    Ok(())
}

/// Contract 8.2, and what makes recovery a diff: the maps are read, compared, and found right. One write says that another
/// run began, so that flows look at their frontends again, whatever the run before was about to do.
#[test]
fn a_start_over_what_is_there_writes_only_that_it_began() -> Result<()> {
    let (rig, web) = start()?;
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    let first = agent.metric(&["lb_map_operations"])?;
    ensure!(first > 10.0, "{first} writes for a Service");
    agent.kill9()?;
    agent.start_again()?;
    let again = agent.metric(&["lb_map_operations"])?;
    ensure!(again < 1.5, "{again} writes, and nothing had changed");
    drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(Family::V4)))?);
    Ok(())
}

#[test]
fn cleanup_leaves_no_program_map_link_or_setting() -> Result<()> {
    let (rig, web) = start()?;
    let before = settings(rig.node(0)?)?;
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    let pins = rig.node(0)?.bpf().join(LAYOUT);
    let programs = programs(&pins.join("programs"))?;
    let maps =
        SHAPES.iter().map(|shape| Ok(MapInfo::from_pin(pins.join("maps").join(shape.name))?.id()));
    let maps: BTreeSet<u32> = maps.collect::<Result<_>>()?;
    ensure!(programs.len() >= 12 && links_of(&programs) >= 12, "{programs:?} are attached");
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    wait_until(FREED, "the kernel has none of our links, programs and maps", || {
        let alive = loaded_programs().flatten().any(|program| programs.contains(&program.id()))
            || loaded_maps().flatten().any(|map| maps.contains(&map.id()))
            || links_of(&programs) > 0;
        (!alive).then_some(())
    })?;
    let after = settings(rig.node(0)?)?;
    let changed: Vec<_> =
        after.iter().filter(|(name, value)| before.get(*name) != Some(value)).collect();
    ensure!(changed.is_empty() && before.len() == after.len(), "settings are others: {changed:?}");
    Ok(())
}

/// Numbers of the programs that are pinned below a folder.
fn programs(folder: &Path) -> Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for build in fs::read_dir(folder)? {
        for pin in fs::read_dir(build?.path())? {
            let _: bool = found.insert(ProgramInfo::from_pin(pin?.path())?.id());
        }
    }
    Ok(found)
}

/// How many links in the kernel run one of these programs.
fn links_of(programs: &BTreeSet<u32>) -> usize {
    loaded_links().flatten().filter(|link| programs.contains(&link.program_id())).count()
}

/// Every setting of the network that can be read on a host, by its path.
fn settings(host: &Member) -> Result<BTreeMap<PathBuf, String>> {
    host.home().run_in(|| {
        let mut found = BTreeMap::new();
        read_below(Path::new("/proc/sys/net"), &mut found);
        // What the kernel itself counts.
        found.retain(|path, _| !path.ends_with("nf_conntrack_count"));
        found
    })
}

fn read_below(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            read_below(&path, found);
        } else if let Ok(value) = fs::read_to_string(&path) {
            drop(found.insert(path, value));
        }
    }
}
