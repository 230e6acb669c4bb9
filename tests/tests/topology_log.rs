//! A log that cannot be written: the agent starts, serves, stays alive, and counts the lost lines.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, until};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until;
use libc::O_NONBLOCK;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// The deadline for more lines to be logged than the writer's queue holds.
const SOON: Duration = Duration::from_mins(1);

#[test]
fn full_disk_under_the_log_costs_its_lines_only() -> Result<()> {
    serves_without_a_log(Path::new("/dev/full"))
}

#[test]
fn unread_log_costs_only_its_lines() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let pipe = directory.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU)?;
    // Opened for reading as well: without a reader, a writer could not open the pipe, and would later get SIGPIPE.
    let mut held = File::options().read(true).write(true).custom_flags(O_NONBLOCK).open(&pipe)?;
    fill(&mut held)?;
    serves_without_a_log(&pipe)?;
    ensure!(
        held.write(b"x").is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        "the pipe is full"
    );
    Ok(())
}

/// Writes until the pipe accepts no more bytes.
fn fill(pipe: &mut File) -> Result<()> {
    for size in [4_096, 1] {
        loop {
            match pipe.write(&vec![b'x'; size]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => bail!(error),
            }
        }
    }
    Ok(())
}

/// Restarts the agent of node-a with this log, and checks all its services.
fn serves_without_a_log(log: &Path) -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(30_080).pods(&[rig.pod(1, 0)?]);
    let mut rig = rig.start(&[&web])?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    agent.log_to(log);
    // The writer's queue is bounded, and one line for every packet exceeds it.
    agent.set_flag("--packet-log", "all");
    agent.start_again()?;
    let node_port = rig.node(0)?.addresses().socket(Family::V4, 30_080);
    let load = rig.client().peer().load(Ask::tcp(node_port), false, 1)?;
    wait_until(SOON, "lost lines are counted", || {
        (agent.metric(&["lb_log_lines_lost"]).ok()? > 0.5).then_some(())
    })?;
    drop(load.finish_without_loss()?);
    // The agent also follows later changes.
    let late = Service::new("late", 11)?.port(80, TARGET).node_port(30_081).pods(&[rig.pod(1, 1)?]);
    rig.manifests().apply(&late)?;
    let node_port = rig.node(0)?.addresses().socket(Family::V4, 30_081);
    until(rig.client(), Ask::tcp(node_port), Result::is_ok)?;
    for path in ["/livez", "/readyz"] {
        let (status, body) = agent.health(path)?;
        ensure!(status == 200, "{path}: {status} {body}");
    }
    agent.stop()
}
