//! The location of pins, and pins that are not as expected: the agent refuses them by name with a remedy, and packets
//! still flow.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_tests::agent::Agent;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix, until};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until;
use nix::mount::{MntFlags, umount2};

/// The maps of one load of the programs, by name.
const MAPS: [&str; 4] = ["L3_PATHS", "PATHS", "SCRATCH", "XDP_PATHS"];
/// The deadline for the pins of replaced programs to be removed.
const SOON: Duration = Duration::from_secs(30);

/// Builds one node with two pods, the second behind a Service, without an agent.
fn build() -> Result<(Rig, Service)> {
    let rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    Ok((rig, web))
}

/// The node of [`build`] after a first run of its agent.
fn stopped() -> Result<(Rig, Service, Agent)> {
    let (mut rig, web) = build()?;
    rig.start_agents(&[])?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    Ok((rig, web, agent))
}

fn is_served(rig: &Rig, web: &Service) -> Result<()> {
    for family in Family::ALL {
        drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(family)))?);
    }
    Ok(())
}

/// Checks that a refused agent has changed nothing, and that it runs after the remedy that it names.
fn is_refused_until_cleaned_up(
    (rig, web, mut agent): (Rig, Service, Agent),
    parts: &[&str],
) -> Result<()> {
    agent.spawn_again(&[])?;
    agent.refuses_to_run(parts)?;
    is_served(&rig, &web)?;
    drop(agent.command(&["cleanup"])?);
    agent.start_again()?;
    is_served(&rig, &web)
}

#[test]
fn map_of_another_shape_is_refused() -> Result<()> {
    let stopped = stopped()?;
    let maps = stopped.0.node(0)?.bpf().join(LAYOUT).join("maps");
    // bpffs only renames within a directory, so the pin is removed first: `SERVICES` then names a settings map.
    fs::remove_file(maps.join("SERVICES"))?;
    fs::rename(maps.join("SETTINGS"), maps.join("SERVICES"))?;
    let place = format!("{} is an array of 1 entries", maps.join("SERVICES").display());
    let parts = [&*place, "expected a hash with keys of", "or it is damaged", "cleanup"];
    is_refused_until_cleaned_up(stopped, &parts)
}

#[test]
fn pin_that_is_no_map_is_refused() -> Result<()> {
    let stopped = stopped()?;
    let pins = stopped.0.node(0)?.bpf().join(LAYOUT);
    let map = pins.join("maps/FLOWS6");
    fs::remove_file(&map)?;
    fs::rename(pins.join("links/connect4"), &map)?;
    let place = format!("{} is a bpf-link, not a map, expected a hash", map.display());
    is_refused_until_cleaned_up(stopped, &[&place, "cleanup"])
}

/// Any map that the agent fills may be lost while no agent runs. The next run fills it again, also the bits without
/// which no answer would be looked up.
#[test]
fn maps_that_are_lost_are_filled_again() -> Result<()> {
    let (rig, web, mut agent) = stopped()?;
    let maps = rig.node(0)?.bpf().join(LAYOUT).join("maps");
    let all =
        ["BACKEND_FILTER", "IN_USE", "SERVICES", "MAGLEV", "ADDRESSES", "DEVICES", "SETTINGS"];
    for lost in all {
        fs::remove_file(maps.join(lost)).with_context(|| lost)?;
        agent.start_again()?;
        is_served(&rig, &web).with_context(|| format!("after {lost} was lost"))?;
        agent.stop()?;
    }
    Ok(())
}

/// The map of flows stays, and the filter without which their answers are not looked up is lost.
#[test]
fn open_flows_are_answered_after_the_filter_of_their_backends_was_lost() -> Result<()> {
    let (rig, web, mut agent) = stopped()?;
    let mut open = Vec::new();
    for (family, protocol) in matrix() {
        let question = Ask::new(protocol, web.frontend(family));
        let kept = rig.pod(0, 0)?.peer().keep(question)?;
        drop(kept.ask().with_context(|| format!("{question:?}"))?);
        open.push((question, kept));
    }
    fs::remove_file(rig.node(0)?.bpf().join(LAYOUT).join("maps/IN_USE"))?;
    agent.start_again()?;
    for (question, kept) in &open {
        for _ in 0..2 {
            drop(kept.ask().with_context(|| format!("{question:?}, the filter was lost"))?);
        }
    }
    is_served(&rig, &web)
}

/// The maps of a load that is not attached by XDP, each of them lost while no agent runs: the next run loads all
/// programs again.
#[test]
fn maps_of_programs_that_are_lost_are_made_again() -> Result<()> {
    let (rig, web, mut agent) = stopped()?;
    for lost in MAPS {
        for build in fs::read_dir(rig.node(0)?.bpf().join(LAYOUT).join("programs"))? {
            fs::remove_file(build?.path().join(lost)).with_context(|| lost)?;
        }
        agent.start_again().with_context(|| format!("after {lost} was lost"))?;
        is_served(&rig, &web).with_context(|| format!("after {lost} was lost"))?;
        agent.stop()?;
    }
    Ok(())
}

/// The maps of a replaced load stay until its programs are detached, and are then freed.
#[test]
fn maps_of_a_replaced_load_go_with_its_programs() -> Result<()> {
    let (rig, web, mut agent) = stopped()?;
    let maps = || -> Result<BTreeMap<String, u64>> {
        let mut found = BTreeMap::new();
        for build in fs::read_dir(rig.node(0)?.bpf().join(LAYOUT).join("programs"))? {
            for pin in fs::read_dir(build?.path())? {
                let pin = pin?;
                let name = pin.file_name().to_string_lossy().into_owned();
                if MAPS.iter().any(|map| name.starts_with(map)) {
                    found.insert(name, pin.metadata()?.ino());
                }
            }
        }
        Ok(found)
    };
    let before = maps()?;
    ensure!(before.keys().eq(MAPS), "{before:?}");
    // Another map size needs new programs, which are attached beside the old ones.
    for size in ["FLOWS=1024", "FLOWS=2048"] {
        agent.set_flag("--map-size", size);
        agent.start_again()?;
        is_served(&rig, &web)?;
        let is_alone = || maps().is_ok_and(|found| found.len() == MAPS.len()).then_some(());
        wait_until(SOON, "the maps of the load that was replaced are gone", is_alone)?;
        let now = maps()?;
        ensure!(now.keys().eq(before.keys()) && now.values().ne(before.values()), "{now:?}");
        agent.stop()?;
    }
    is_served(&rig, &web)
}

/// The source of the mount at a path, from `/proc/mounts`.
fn mounted_by(path: &Path) -> Result<Option<String>> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut sources = fields.filter(|fields| fields.get(1).is_some_and(|at| Path::new(at) == path));
    Ok(sources.next().and_then(|fields| fields.first().map(|source| (*source).to_owned())))
}

#[test]
fn bpffs_is_mounted_where_there_is_none_and_unmounted_by_cleanup() -> Result<()> {
    let (mut rig, web) = build()?;
    let bpf = rig.node(0)?.bpf().to_owned();
    umount2(&bpf, MntFlags::empty()).with_context(|| bpf.display().to_string())?;
    rig.start_agents(&[])?;
    is_served(&rig, &web)?;
    ensure!(mounted_by(&bpf)?.as_deref() == Some("lb-agent"), "by {:?}", mounted_by(&bpf)?);
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let said = agent.command(&["cleanup"])?;
    ensure!(said.contains(&format!("unmounted {}", bpf.display())), "{said}");
    ensure!(mounted_by(&bpf)?.is_none(), "still mounted by {:?}", mounted_by(&bpf)?);
    let question = Ask::tcp(web.frontend(Family::V4)).within(200);
    until(rig.pod(0, 0)?, question, Result::is_err)
}

/// A job that cleans up after kube-proxy uses the flag together with the configuration file of the agent to clean up.
#[test]
fn cleanup_by_flag_removes_the_pins_that_the_file_names() -> Result<()> {
    let (rig, web, agent) = stopped()?;
    is_served(&rig, &web)?;
    let bpf = rig.node(0)?.bpf();
    let file = rig.topology().directory("config")?.join("config.yaml");
    let document = "apiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\nbpfDir: ";
    fs::write(&file, format!("{document}{}\n", bpf.display()))?;
    let config = format!("--config={}", file.display());
    let said = agent.command(&["run", "--cleanup", &config])?;
    let link = format!("removed {}", bpf.join(LAYOUT).join("links/connect4").display());
    ensure!(said.contains(&link), "{said}");
    let question = Ask::tcp(web.frontend(Family::V4)).within(200);
    until(rig.pod(0, 0)?, question, Result::is_err)?;
    let again = agent.command(&["run", "--cleanup", &config])?;
    ensure!(again.contains(&format!("nothing to remove in {}", bpf.display())), "{again}");
    fs::write(&file, "kind: Teapot")?;
    let (code, said) = agent.exit_code(&["run", "--cleanup", &config])?;
    ensure!(code == 2 && said.contains("Teapot"), "{code}: {said}");
    Ok(())
}

#[test]
fn bpffs_of_another_program_stays_mounted() -> Result<()> {
    let (rig, _, agent) = stopped()?;
    let bpf = rig.node(0)?.bpf();
    let before = mounted_by(bpf)?;
    let said = agent.command(&["cleanup"])?;
    ensure!(before.is_some() && !said.contains("unmounted"), "{before:?}: {said}");
    ensure!(mounted_by(bpf)? == before, "mounted by {before:?}, now {:?}", mounted_by(bpf)?);
    Ok(())
}

#[test]
fn directory_where_nothing_can_be_mounted_is_refused() -> Result<()> {
    let (rig, web, mut agent) = stopped()?;
    drop(agent.command(&["cleanup"])?);
    let bpf = rig.node(0)?.bpf().to_owned();
    umount2(&bpf, MntFlags::empty()).with_context(|| bpf.display().to_string())?;
    // These capabilities are enough to run, but not to mount.
    agent.confine("-all,+bpf,+net_admin,+perfmon");
    agent.spawn_again(&[])?;
    let remedy = format!("as root: mount -t bpf bpf {}", bpf.display());
    agent.refuses_to_run(&["is not a bpffs and none can be mounted there", &remedy])?;
    // The command of an init container, in our spelling and in kube-proxy's.
    for init in [&["run", "--init-only"][..], &["init"]] {
        ensure!(mounted_by(&bpf)?.is_none(), "mounted before {init:?}");
        let said = agent.command(init)?;
        ensure!(said.contains("mounted a bpffs at"), "{init:?} does not say so: {said}");
        ensure!(mounted_by(&bpf)?.as_deref() == Some("lb-agent"), "{init:?} has not mounted it");
        if init != ["init"] {
            umount2(&bpf, MntFlags::empty())?;
        }
    }
    agent.start_again()?;
    is_served(&rig, &web)
}
