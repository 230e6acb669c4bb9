//! The operator's view of faults: links that lead nowhere, a main loop that hangs, and files that were removed.

use std::fs::{self, OpenOptions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_agent::state_file::{loopback_file, state_file, sync_file};
use lb_tests::differential::bpf::foreign::{load_connect4, occupy_connect4};
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Family, Member, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

const SOON: Duration = Duration::from_mins(1);

fn start(flags: &[&str]) -> Result<(Rig, Service)> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    rig.start_agents(flags)?;
    Ok((rig, web))
}

/// The pin of a link stays when the link is detached, and when its interface is removed. No agent runs to repair that.
#[test]
fn links_that_lead_nowhere_are_not_attached() -> Result<()> {
    let (mut rig, _) = start(&[])?;
    let mut agent = rig.take_agent(0)?;
    agent.kill9()?;
    let says = |expected: i32, line: &str| {
        let (code, said) = agent.ended(&["status"])?;
        ensure!(
            code == expected && said.contains(line),
            "{code} instead of {expected}, {line:?}: {said}"
        );
        Ok(())
    };
    says(0, "Interface      veth-a1         pod      attached")?;
    let node = rig.node(0)?;
    let pins = node.bpf().join(LAYOUT).join("links");
    let detach = |name: &str| {
        let pin = pins.join(name).display().to_string();
        node.netns().tool("bpftool", &["link", "detach", "pinned", &pin]).map(drop)
    };
    // Pods that come and go while no agent runs are not a fault.
    let gone = rig.pod(0, 0)?.device();
    let gone_index = node.device_number(gone, "ifindex")?;
    node.netns().ip(&format!("link delete {gone}"))?;
    says(0, &format!("Interface      {:<15} pod      gone", format!("#{gone_index}")))?;
    detach("connect4")?;
    says(1, "Socket hooks   3 of 4 attached")?;
    detach(&format!("{}-egress", node.device_number("eth0", "ifindex")?))?;
    says(1, "Interface      eth0            external NOT attached")
}

/// A directory that is made again under its name is another cgroup; the links went with the first one.
#[test]
fn hooks_return_to_a_recreated_cgroup() -> Result<()> {
    let (mut rig, _) = start(&[])?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let own = rig.node(0)?.cgroup().join("own");
    fs::create_dir(&own)?;
    agent.set_flag("--cgroup", &own.display().to_string());
    agent.start_again()?;
    let has = |count: usize| {
        let said = agent.exit_said(&["status"])?;
        ensure!(said.contains(&format!("Socket hooks   {count} of 4 attached")), "{said}");
        Ok(())
    };
    has(4)?;
    fs::remove_dir(&own)?;
    wait_until_ok(SOON, "the hooks are gone with their cgroup", || has(0))?;
    fs::create_dir(&own)?;
    wait_until_ok(SOON, "the hooks are attached to the new cgroup", || has(4))?;
    let log = agent.log_end(1_000);
    let failed: Vec<&str> = log.lines().filter(|line| line.contains("repair failed")).collect();
    ensure!(failed.len() <= 4, "a fault is logged more than once: {failed:#?}");
    agent.stop()?;
    Ok(fs::remove_dir(&own)?)
}

/// A program of another owner that was attached without `multi` admits no other one. Packets are translated all the
/// same.
#[test]
fn socket_hook_that_another_program_excludes_stops_nothing() -> Result<()> {
    let (mut rig, web) = start(&[])?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    let cgroup = fs::File::open(rig.node(0)?.cgroup())?;
    let program = load_connect4()?;
    occupy_connect4(cgroup.as_fd(), program.as_fd(), true)?;
    agent.start_again()?;
    let question = Ask::tcp(web.frontend(Family::V4));
    let clients: [&Member; 2] = [rig.pod(0, 0)?, rig.node(0)?];
    for from in clients {
        drop(ask(from, question).with_context(|| from.name().to_owned())?);
    }
    let says = |text: &str| {
        let (code, said) = agent.ended(&["status"])?;
        ensure!(code == 1 && said.contains(text), "exit code {code}: {said}");
        Ok(())
    };
    says("Socket hooks   3 of 4 attached")?;
    wait_until_ok(SOON, "the problem is reported", || says("Problem        socket hook connect4"))?;
    occupy_connect4(cgroup.as_fd(), program.as_fd(), false)?;
    wait_until_ok(SOON, "the hook is attached", || {
        let said = agent.exit_said(&["status"])?;
        ensure!(said.contains("Socket hooks   4 of 4 attached"), "{said}");
        Ok(())
    })?;
    drop(ask(rig.node(0)?, question)?);
    agent.stop()
}

/// The main loop hangs in a system call, here until the time of the last sync is read from a pipe. Other threads answer
/// health requests.
#[test]
fn main_loop_that_hangs_turns_livez_bad_until_it_goes_on() -> Result<()> {
    let (rig, web) = start(&["--iptables-sync-period=2s"])?;
    let agent = rig.agent(0)?;
    let is = |expected: u16| {
        let (code, said) = agent.health("/livez")?;
        ensure!(code == expected, "/livez answers with {code}: {said}");
        Ok(())
    };
    is(200)?;
    let pipe = sync_file(rig.node(0)?.bpf());
    wait_until_ok(SOON, "the last sync is written", || Ok(fs::metadata(&pipe).map(drop)?))?;
    let regular = pipe.with_extension("before");
    fs::rename(&pipe, &regular)?;
    // Created under another name and renamed, because the agent must always find a file there.
    let made = pipe.with_extension("pipe");
    mkfifo(&made, Mode::S_IRWXU)?;
    fs::rename(&made, &pipe)?;
    rig.manifests().apply(&web.port(81, TARGET))?;
    let outcome = wait_until_ok(SOON, "/livez is bad", || is(503));
    let reader =
        OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(&pipe)?;
    fs::remove_file(&pipe)?;
    drop(fs::remove_file(&regular));
    outcome?;
    let well = wait_until_ok(SOON, "/livez is well again", || is(200));
    drop(reader);
    well?;
    wait_until_ok(SOON, "the last sync is written again", || Ok(fs::metadata(&pipe).map(drop)?))
}

/// `/run` is cleared: names and the time of the last sync return, although nothing changes.
#[test]
fn removed_state_comes_back_without_a_change() -> Result<()> {
    let (rig, _) = start(&[])?;
    let agent = rig.agent(0)?;
    let directory = state_file(rig.node(0)?.bpf());
    let directory = directory.parent().context("a directory")?;
    let is_reported = || {
        let status = agent.command(&["status"])?;
        let listed = agent.command(&["lb", "list"])?;
        let has_state = status.contains("Node           node-a") && status.contains("Last sync");
        ensure!(has_state && listed.contains("default/web"), "{status}{listed}");
        Ok(())
    };
    is_reported()?;
    fs::remove_dir_all(directory)?;
    wait_until_ok(SOON, "the state is back", is_reported)
}

/// A file is in the place of the directory for the agent's files, which fails as a full or a read-only one does. The
/// earlier settings of `lo` are saved once the directory can be made, and `cleanup` restores them.
#[test]
fn host_processes_are_served_while_the_settings_of_loopback_cannot_be_saved() -> Result<()> {
    let mut rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    let record = loopback_file(rig.node(0)?.bpf());
    let place = record.parent().context("a directory")?.to_owned();
    fs::create_dir_all(place.parent().context("a directory")?)?;
    fs::write(&place, "")?;
    let served = rig.start_agents(&[]).and_then(|()| {
        for (family, protocol) in matrix() {
            drop(ask(rig.node(0)?, Ask::new(protocol, web.frontend(family)))?);
        }
        wait_until_ok(SOON, "the problem is counted and named", || {
            let (count, log) = (rig.agent(0)?.metric(&["lb_node_problems"])?, rig.agent(0)?);
            let log = log.log_end(1_000);
            let named = format!("cannot be saved in {}", place.display());
            ensure!(count > 0.5 && log.contains(&named), "{count} problems: {log}");
            Ok(())
        })
    });
    fs::remove_file(&place)?;
    served?;
    let mut agent = rig.take_agent(0)?;
    wait_until_ok(SOON, "the settings are saved", || Ok(fs::metadata(&record).map(drop)?))?;
    wait_until_ok(SOON, "the problem is over", || agent.has_problems(0))?;
    agent.stop()?;
    let said = agent.command(&["cleanup"])?;
    ensure!(said.contains("restored settings of the loopback interface"), "{said}");
    let accepts = rig.node(0)?.netns().tool("sysctl", &["-n", "net.ipv4.conf.lo.accept_local"])?;
    ensure!(accepts.trim() == "0", "net.ipv4.conf.lo.accept_local is {accepts}");
    Ok(())
}

/// A hardening job turns forwarding off: packets are translated, and the stack drops them then.
#[test]
fn node_that_does_not_forward_is_a_problem_that_names_the_setting() -> Result<()> {
    let (rig, _) = start(&[])?;
    let (node, agent) = (rig.node(0)?.netns(), rig.agent(0)?);
    agent.has_problems(0)?;
    for (setting, named) in [
        ("net.ipv4.ip_forward", "net.ipv4.conf.eth0.forwarding is 0"),
        ("net.ipv6.conf.all.forwarding", "net.ipv6.conf.all.forwarding is 0"),
    ] {
        node.sysctl(setting, "0")?;
        wait_until_ok(SOON, "the setting is a problem", || agent.has_problems(1))?;
        let said = agent.exit_said(&["status"])?;
        ensure!(said.contains(named), "{setting}: {said}");
        node.sysctl(setting, "1")?;
        wait_until_ok(SOON, "the problem is gone", || agent.has_problems(0))?;
    }
    Ok(())
}
