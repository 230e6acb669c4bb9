//! The XDP program of an interface: kept through a restart, attached again when it is detached, left off where it is
//! not wanted, and beside a program of another owner.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use aya::programs::{Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use lb_agent::datapath::{self, LAYOUT};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix};
use lb_tests::topology::{Node, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;

use super::{
    SOON, counted, everything_is_answered, is_on, is_on_device, start, until_shown, with_agents,
};

in_both_shapes!(xdp_stays_through_a_restart_and_goes_with_cleanup);

fn xdp_stays_through_a_restart_and_goes_with_cleanup(shape: Shape) -> Result<()> {
    let mut rig = start(Topology::builder(shape).without_checksum_offload(), "native")?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    ensure!(is_on(rig.node(0)?)?, "XDP was detached when the agent ended");
    everything_is_answered(&rig)?;
    agent.start_again()?;
    until_shown(&agent, "eth0            attached")?;
    everything_is_answered(&rig)?;
    agent.stop()?;
    drop(agent.command(&["cleanup"])?);
    ensure!(!is_on(rig.node(0)?)?, "XDP is still attached after cleanup");
    Ok(())
}

/// A directory of pins of node-a.
fn pins(rig: &Rig, name: &str) -> Result<PathBuf> {
    Ok(rig.node(0)?.bpf().join(LAYOUT).join(name))
}

#[test]
fn detached_program_is_attached_again_and_counted() -> Result<()> {
    let builder = Topology::builder(Shape::Routed).without_checksum_offload();
    let rig = start(builder, "native")?;
    until_shown(rig.agent(0)?, "attached")?;
    let index = rig.node(0)?.device_number("eth0", "ifindex")?;
    let pin = pins(&rig, "links")?.join(format!("{index}-xdp"));
    let path = pin.to_str().context("a path in UTF-8")?;
    let repaired = |fault, times: f64| {
        wait_until_ok(SOON, &format!("{fault} is repaired"), || {
            let count = rig.agent(0)?.metric(&["lb_attachment_repairs_total", fault])?;
            ensure!(
                (times..times + 1.0).contains(&count) && is_on(rig.node(0)?)?,
                "{count} repairs"
            );
            Ok(())
        })
    };
    drop(rig.node(0)?.netns().tool("bpftool", &["link", "detach", "pinned", path])?);
    repaired("detached", 1.0)?;
    fs::remove_file(&pin)?;
    repaired("unpinned", 1.0)?;
    until_shown(rig.agent(0)?, "attached")?;
    let programs: Vec<_> = fs::read_dir(pins(&rig, "programs")?)?.flatten().collect();
    let programs = programs.iter().map(|object| object.path().join("external_xdp"));
    let programs: Vec<_> = programs.filter(|program| program.exists()).collect();
    programs.iter().try_for_each(fs::remove_file)?;
    wait_until_ok(SOON, "its program is pinned again", || {
        ensure!(!programs.is_empty() && programs.iter().all(|program| program.exists()));
        Ok(())
    })?;
    let log = rig.agent(0)?.log_end(usize::MAX);
    ensure!(!log.contains("XDP no longer in use"), "the program was taken for lost: {log}");
    everything_is_answered(&rig)
}

/// A program of an earlier run may use maps that no longer exist.
#[test]
fn an_earlier_program_goes_when_its_successor_cannot_be_had() -> Result<()> {
    let builder = Topology::builder(Shape::Routed).without_checksum_offload();
    let mut rig = start(builder, "native")?;
    until_shown(rig.agent(0)?, "attached")?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    for object in fs::read_dir(pins(&rig, "programs")?)? {
        let program = object?.path().join("external_xdp");
        fs::remove_file(&program)?;
        // A directory at the pin's path, so that the new program cannot be pinned.
        fs::create_dir(&program)?;
    }
    agent.start_again()?;
    until_shown(&agent, "not attached: pin")?;
    ensure!(!is_on(rig.node(0)?)?, "the earlier program is still attached");
    everything_is_answered(&rig)
}

#[test]
fn a_veth_is_left_alone_unless_configured_otherwise() -> Result<()> {
    let mut rig = start(Topology::builder(Shape::Routed).nodes(2), "auto")?;
    until_shown(
        rig.agent(0)?,
        "not attached: skipped, XDP is slower than tc on virtual interfaces (veth)",
    )?;
    ensure!(!is_on(rig.node(0)?)?, "a program on eth0");
    everything_is_answered(&rig)?;
    // A program of an earlier run is detached when the setting is `off`.
    for _ in 0..2 {
        rig.take_agent(0)?.stop()?;
    }
    for (setting, expected) in [("native", true), ("off", false)] {
        rig = with_agents(rig, setting)?;
        until_shown(rig.agent(0)?, if expected { "attached" } else { "acceleration is off" })?;
        ensure!(is_on(rig.node(0)?)? == expected, "acceleration {setting}");
        for _ in 0..2 {
            rig.take_agent(0)?.stop()?;
        }
    }
    Ok(())
}

/// The second network card is a pod's interface in the next run: it keeps programs at tc, but not that of an external
/// interface.
#[test]
fn program_of_an_interface_that_is_external_no_more_goes_with_the_next_run() -> Result<()> {
    let builder = Topology::builder(Shape::Routed).two_segments().rp_filter(2);
    let builder = builder.without_checksum_offload();
    let mut rig = start(builder, "native\nexternalDevices: [eth0, eth1]")?;
    let mut agent = rig.take_agent(0)?;
    let node = rig.node(0)?;
    let until_on = |expected: [bool; 2]| {
        wait_until_ok(SOON, &format!("XDP is on eth0 and eth1: {expected:?}"), || {
            let found = [is_on_device(node, "eth0")?, is_on_device(node, "eth1")?];
            ensure!(found == expected, "{found:?}");
            Ok(())
        })
    };
    until_on([true, true])?;
    agent.stop()?;
    let roles = "externalDevices: [eth0]\npodDevices: ['veth*', eth1]";
    drop(rig.configuration(&format!("acceleration: native\n{roles}"))?);
    agent.start_again()?;
    until_on([true, false])?;
    let status = agent.command(&["status"])?;
    let mut lines = status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_pods = lines.any(|words| words.get(..3) == Some(&["Interface", "eth1", "pod"]));
    ensure!(is_pods, "eth1 as a pod's interface: {status}");
    agent.stop()
}

/// Attaches a foreign XDP program to an interface: the same object with separate, empty maps, so that it passes every
/// packet.
fn occupy(node: &Node) -> Result<Ebpf> {
    let attach = || -> Result<Ebpf> {
        let mut ebpf = EbpfLoader::new().load(datapath::object())?;
        let Some(program) = ebpf.program_mut("external_xdp") else { bail!("no XDP program") };
        let program: &mut Xdp = program.try_into()?;
        program.load()?;
        program.attach("eth0", XdpMode::Driver)?;
        Ok(ebpf)
    };
    node.netns().run_in(attach)?
}

#[test]
fn program_of_another_owner_is_left_alone_and_followed() -> Result<()> {
    let rig = Rig::build(Topology::builder(Shape::Routed).without_checksum_offload())?;
    let near = Service::new("near", 10)?.port(80, TARGET).node_port(30_080).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&near)?;
    let other = occupy(rig.node(0)?)?;
    let rig = with_agents(rig, "native")?;
    until_shown(rig.agent(0)?, "another XDP program is attached; it is left alone")?;
    let to = |family| rig.node(0).map(|node| node.addresses().socket(family, 30_080));
    for (family, protocol) in matrix() {
        drop(ask(rig.client(), Ask::new(protocol, to(family)?))?);
    }
    ensure!(counted(rig.agent(0)?, "")? == 0.0, "ours ran");
    let said = rig.agent(0)?.command(&["status", "--verbose"])?;
    let line = said.lines().find(|line| line.starts_with("Programs       eth0            xdp "));
    ensure!(
        line.is_some_and(|line| line.contains("external_xdp (")),
        "the foreign program is not listed:\n{said}"
    );
    drop(other);
    until_shown(rig.agent(0)?, "eth0            attached")?;
    for (family, protocol) in matrix() {
        drop(ask(rig.client(), Ask::new(protocol, to(family)?))?);
    }
    ensure!(counted(rig.agent(0)?, "translated")? > 0.0, "XDP translated nothing");
    Ok(())
}
