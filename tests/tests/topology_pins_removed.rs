//! Pins that are removed while the agent runs: no packet is lost, and the agent restores the pins.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_tests::agent::Agent;
use lb_tests::campaign;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, askers, matrix, until};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::{Ask, PAUSE};
use lb_tests::wait::wait_until_ok;
use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const NODE_PORT: u16 = 30_080;
/// The deadline for the agent to detect missing pins: it inspects every two seconds.
const SOON: Duration = Duration::from_secs(30);
/// The time during which pins are removed repeatedly, in the short and in the long form: at least two inspections.
const REMOVALS: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(7)];
/// The number of changes of a Service that are made while no pin can be restored.
const CHANGES: u16 = 5;

fn start() -> Result<(Rig, Service)> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.pods(&[rig.pod(0, 1)?, rig.pod(1, 0)?]);
    Ok((rig.start(&[&web])?, web))
}

/// All paths below a directory.
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
    // Some of these removals fall between two steps of an inspection.
    let [short, long] = REMOVALS;
    let end = Instant::now() + campaign::size(short, long);
    while Instant::now() < end {
        remove(&directory)?;
    }
    until_back(&directory, &before)?;
    let repairs = agent.metric(&["lb_attachment_repairs_total", "unpinned"])?;
    ensure!(repairs > 3.0 * 8.0, "{repairs} repairs: two pods, an uplink and four hooks, thrice");
    campaign::figure("removed pins that came back, no answer lost", repairs, "pins");
    // The restored pins are complete: the next run continues where this one ended.
    agent.kill9()?;
    agent.start_again()?;
    for (what, load) in loads {
        drop(load.finish_without_loss().context(what)?);
    }
    Ok(())
}

/// The links would end with the process.
#[test]
fn pins_that_were_removed_before_an_end_come_back_first() -> Result<()> {
    let (mut rig, web) = start()?;
    let directory = rig.node(0)?.bpf().join(LAYOUT);
    let before = pins(&directory.join("links"))?;
    let mut agent = rig.take_agent(0)?;
    fs::remove_dir_all(&directory)?;
    agent.stop()?;
    ensure!(pins(&directory.join("links"))? == before, "not all pins of links are back");
    drop(ask(rig.pod(0, 0)?, Ask::tcp(web.frontend(Family::V4)))?);
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
    // A pod that is added now gets programs that use these maps.
    rig.until_programmed()
}

/// A mount hides the directory of the pins, so that no pin can be created. Packets are served and Services change, and
/// `status`, metrics and health report the problem until the mount is removed.
#[test]
fn pins_that_cannot_come_back_are_a_problem_and_turn_the_health_bad() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(&["--iptables-sync-period=2s"])?;
    let agent = rig.agent(0)?;
    let directory = rig.node(0)?.bpf().join(LAYOUT);
    // A restart would end the programs, so the agent counts as alive.
    let is = |expected: u16| {
        for (path, expected) in [("/healthz", expected), ("/livez", 200)] {
            let (code, text) = agent.health(path)?;
            ensure!(code == expected, "{path} answers with {code}: {text}");
        }
        Ok(())
    };
    is(200)?;
    ensure!(problems(agent)? < 0.5, "a problem is reported before the test");
    let question = Ask::tcp(web.frontend(Family::V4));
    let load = rig.pod(0, 0)?.peer().load(question, false, PAUSE)?;
    mount(Some("cover"), &directory, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    let outcome = has_no_pins(agent, "missing")
        .and_then(|()| wait_until_ok(SOON, "the health is bad", || is(503)))
        .and_then(|()| stays_bad_while_services_change(&rig, &is))
        .and_then(|()| serves_a_new_interface(&rig, &web))
        .and_then(|()| names_the_cause(agent));
    umount(&directory)?;
    outcome?;
    wait_until_ok(SOON, "the health is well again", || is(200))?;
    wait_until_ok(SOON, "status is well again", || {
        let (code, said) = agent.ended(&["status"])?;
        ensure!(code == 0 && problems(agent)? < 0.5, "{code}: {said}");
        Ok(())
    })?;
    drop(load.finish_without_loss()?);
    Ok(())
}

/// The bpffs is mounted read-only, so the kernel opens no pin, and none can be made: nothing is missing, but it is a
/// problem until the bpffs is mounted read-write again.
#[test]
fn pins_on_a_read_only_bpffs_are_not_missing() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(1, 0)?]);
    let mut rig = rig.start(&[&web])?;
    let agent = rig.take_agent(0)?;
    let bpffs = rig.node(0)?.bpf();
    let load = rig.pod(0, 0)?.peer().load(Ask::tcp(web.frontend(Family::V4)), false, PAUSE)?;
    let remount = |flags: MsFlags| {
        mount(None::<&str>, bpffs, None::<&str>, MsFlags::MS_REMOUNT | flags, None::<&str>)
    };
    remount(MsFlags::MS_RDONLY)?;
    let is_named = wait_until_ok(SOON, "status names the mount", || {
        let said = agent.exit_said(&["status"])?;
        let named: Vec<_> = said.lines().filter(|line| line.starts_with("Problem")).collect();
        let is_it = |line: &&str| line.contains("their bpffs is mounted read-only");
        ensure!(named.len() == 1 && named.iter().all(is_it), "{said}");
        for path in ["/healthz", "/livez"] {
            let (code, text) = agent.health(path)?;
            ensure!(code == 200, "{path} answers with {code}: {text}");
        }
        Ok(())
    });
    remount(MsFlags::empty())?;
    is_named?;
    wait_until_ok(SOON, "the problem is over", || agent.has_problems(0))?;
    let repairs = agent.metric(&["lb_attachment_repairs_total"])?;
    ensure!(repairs < 0.5, "{repairs} repairs of attachments that had no fault");
    drop(load.finish_without_loss()?);
    Ok(())
}

/// The number of problems of the node, from the metrics.
fn problems(agent: &Agent) -> Result<f64> {
    agent.metric(&["lb_node_problems"])
}

/// Checks that `status` reports at once that the agent runs without its pins.
fn has_no_pins(agent: &Agent, what: &str) -> Result<()> {
    let (code, said) = agent.ended(&["status"])?;
    let is_reported = said.contains(&format!("{LAYOUT}: {what}"));
    let process = format!("running (process {})", agent.id());
    ensure!(code == 1 && is_reported && said.contains(&process), "{code}: {said}");
    Ok(())
}

/// Each change is programmed into the maps that the agent holds, and none of them restores a pin.
fn stays_bad_while_services_change(rig: &Rig, is: &impl Fn(u16) -> Result<()>) -> Result<()> {
    for number in 0..CHANGES {
        let late = Service::new("late", 11)?.port(80 + number, TARGET).pods(&[rig.pod(0, 1)?]);
        rig.manifests().apply(&late)?;
        let question = Ask::tcp(late.frontend(Family::V4));
        until(rig.pod(0, 0)?, question, Result::is_ok)?;
        is(503)?;
    }
    Ok(())
}

/// A pod gets a new interface. Its programs are attached, although their links cannot be pinned.
fn serves_a_new_interface(rig: &Rig, web: &Service) -> Result<()> {
    rig.topology().rewire(0, 1, None)?;
    for (family, protocol) in matrix() {
        until(rig.pod(0, 1)?, Ask::new(protocol, web.frontend(family)), Result::is_ok)?;
    }
    Ok(())
}

fn names_the_cause(agent: &Agent) -> Result<()> {
    wait_until_ok(SOON, "status names the cause", || {
        has_no_pins(agent, "missing")?;
        let said = agent.exit_said(&["status"])?;
        ensure!(said.contains("Problem        pins are missing: "), "{said}");
        ensure!(problems(agent)? > 0.5, "the metric counts none");
        let (_, body) = agent.health("/healthz")?;
        ensure!(body.contains("\"nodeProblems\":1"), "{body}");
        Ok(())
    })
}

/// `--bpf-dir` is a directory of a bpffs that other programs share. Its removal also removes the agent's lock.
#[test]
fn removed_bpf_dir_comes_back_with_its_lock_and_no_question_is_lost() -> Result<()> {
    let (mut rig, web) = start()?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    let directory = rig.node(0)?.bpf().join("deeper");
    agent.set_flag("--bpf-dir", directory.to_str().context("a path in UTF-8")?);
    agent.start_again()?;
    let before = pins(&directory)?;
    let mut loads = Vec::new();
    for (from, question) in askers(&rig, &web, NODE_PORT)? {
        let load = from.peer().load(question, true, PAUSE)?;
        loads.push((format!("{} asks {question:?}", from.name()), load));
    }
    for _ in 0..campaign::size(1, 3) {
        // The agent is stopped (SIGSTOP), because it would restore the pins before `status` runs.
        let process = Pid::from_raw(agent.id().cast_signed());
        kill(process, Signal::SIGSTOP)?;
        let said = fs::remove_dir_all(&directory).map_err(Into::into);
        let said = said.and_then(|()| has_no_pins(&agent, "missing"));
        kill(process, Signal::SIGCONT)?;
        said?;
        until_back(&directory, &before)?;
        wait_until_ok(SOON, "its lock is back", || {
            let said = agent.command(&["status"])?;
            ensure!(said.contains("running (process "), "{said}");
            Ok(())
        })?;
    }
    let (code, said) = agent.exit_code(&["cleanup"])?;
    ensure!(code == 1 && said.contains("in use by another agent"), "{code}: {said}");
    for (what, load) in loads {
        drop(load.finish_without_loss().context(what)?);
    }
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    Ok(())
}
