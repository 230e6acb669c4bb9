//! Somebody removes pins while the agent runs: nothing is lost, and they come back.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, askers};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::{Ask, PAUSE};
use lb_tests::wait::wait_until_ok;
use nix::mount::{MsFlags, mount, umount};

const NODE_PORT: u16 = 30_080;
/// How long the agent may take to see what is missing: it looks every two seconds.
const SOON: Duration = Duration::from_secs(30);
/// How long pins are removed again and again: several inspections.
const REMOVALS: Duration = Duration::from_secs(7);

fn start() -> Result<(Rig, Service)> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.pods(&[rig.pod(0, 1)?, rig.pod(1, 0)?]);
    Ok((rig.start(&[&web])?, web))
}

/// Everything below a directory.
fn pins(directory: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            all.extend(pins(&path)?);
        }
        all.insert(path);
    }
    Ok(all)
}

/// Removes a directory, to which the agent may add pins meanwhile.
fn remove(directory: &Path) -> Result<()> {
    wait_until_ok(SOON, "the directory is removed", || match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    })
}

fn until_back(directory: &Path, before: &BTreeSet<PathBuf>) -> Result<()> {
    wait_until_ok(SOON, "every pin is back", || {
        let now = pins(directory)?;
        let missing: Vec<_> = before.difference(&now).collect();
        ensure!(missing.is_empty(), "{missing:?} are missing");
        Ok(())
    })
}

#[test]
fn removed_directory_of_pins_comes_back_and_no_question_is_lost() -> Result<()> {
    let (mut rig, web) = start()?;
    let mut agent = rig.take_agent(0)?;
    let directory = rig.node(0)?.bpf().join(LAYOUT);
    let before = pins(&directory)?;
    let mut loads = Vec::new();
    for (from, question) in askers(&rig, &web, NODE_PORT)? {
        for kept in [true, false] {
            let load = from.peer().load(question, kept, PAUSE)?;
            loads.push((format!("{} asks {question:?}, kept: {kept}", from.name()), load));
        }
    }
    for _ in 0..3 {
        remove(&directory)?;
        until_back(&directory, &before)?;
    }
    for part in ["links", "maps", "programs"] {
        remove(&directory.join(part))?;
        until_back(&directory, &before)?;
    }
    // Some of these fall between two steps of an inspection.
    let end = Instant::now() + REMOVALS;
    while Instant::now() < end {
        remove(&directory)?;
    }
    until_back(&directory, &before)?;
    let repairs = agent.metric(&["lb_attachment_repairs_total", "unpinned"])?;
    ensure!(repairs > 3.0 * 8.0, "{repairs} repairs: two pods, an uplink and four hooks, thrice");
    // They are worth something: the next run goes on where this one ended.
    agent.kill9()?;
    agent.start_again()?;
    for (what, load) in loads {
        drop(load.finish_without_loss().context(what)?);
    }
    Ok(())
}

#[test]
fn removed_pins_of_maps_come_back_as_the_same_maps() -> Result<()> {
    let (rig, web) = start()?;
    let maps = rig.node(0)?.bpf().join(LAYOUT).join("maps");
    let before = pins(&maps)?;
    drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(Family::V4)))?);
    for map in &before {
        fs::remove_file(map)?;
    }
    until_back(&maps, &before)?;
    let agent = rig.agent(0)?;
    let status = agent.command(&["status"])?;
    ensure!(status.contains("running (process "), "{status}");
    let listed = agent.command(&["ct", "list"])?;
    ensure!(listed.contains("10.96.0.10"), "the flow from before is listed: {listed}");
    let listed = agent.command(&["lb", "list"])?;
    ensure!(listed.contains("10.96.0.10"), "{listed}");
    // A pod that comes now is served by programs over these maps.
    rig.until_programmed()
}

/// Something else lies over the directory of the pins: nothing can be put
/// there. Packets are served, and the health says so until it is gone.
#[test]
fn pins_that_cannot_come_back_turn_healthz_bad() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(&["--iptables-sync-period=2s"])?;
    let agent = rig.agent(0)?;
    let directory = rig.node(0)?.bpf().join(LAYOUT);
    let is = |expected: u16| {
        let (code, text) = agent.health("/healthz")?;
        ensure!(code == expected, "/healthz answers with {code}: {text}");
        Ok(())
    };
    is(200)?;
    let question = Ask::tcp(web.frontend(Family::V4));
    let load = rig.pod(0, 0)?.peer().load(question, false, PAUSE)?;
    mount(Some("cover"), &directory, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    let outcome = wait_until_ok(SOON, "/healthz is bad", || is(503));
    umount(&directory)?;
    outcome?;
    wait_until_ok(SOON, "/healthz is well again", || is(200))?;
    drop(load.finish_without_loss()?);
    Ok(())
}
