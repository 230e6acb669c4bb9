//! Changes of interfaces and of attached programs by other software: the agent restores its own, and leaves others
//! alone.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use lb_agent::datapath::{self, Direction, LAYOUT, PacketLog};
use lb_tests::in_both_shapes;
use lb_tests::manifest::Service;
use lb_tests::netns::Netns;
use lb_tests::rig::{Rig, TARGET, ask, matrix, until};
use lb_tests::topology::{Family, Segment, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The deadline for repairs: no event reports a detached program, so the agent inspects every two seconds.
const SOON: Duration = Duration::from_secs(30);
const NODE_PORT: u16 = 30_080;

in_both_shapes!(
    detached_programs_are_attached_again_and_counted,
    place_among_others_is_taken_back_and_others_stay,
    renamed_moved_and_recreated_interface_is_served,
    second_uplink_that_is_a_veth_is_external,
);

fn start(shape: Shape) -> Result<(Rig, Service)> {
    let rig = Rig::build(Topology::builder(shape))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    let web = web.pods(&[rig.pod(1, 0)?]);
    Ok((rig.start(&[&web])?, web))
}

/// The interface index of an interface of node-a.
fn index(rig: &Rig, device: &str) -> Result<u32> {
    let index = rig.node(0)?.netns().run_in(|| nix::net::if_::if_nametoindex(device))?;
    index.with_context(|| format!("device {device}"))
}

fn is_served(rig: &Rig, web: &Service) -> Result<()> {
    for (family, protocol) in matrix() {
        let node_port = rig.node(0)?.addresses().socket(family, NODE_PORT);
        drop(ask(rig.client(), Ask::new(protocol, node_port).within(2_000))?);
        let question = Ask::new(protocol, web.frontend(family)).within(2_000);
        drop(ask(rig.pod(0, 0)?, question)?);
        drop(ask(rig.node(0)?, question)?);
    }
    Ok(())
}

fn detached_programs_are_attached_again_and_counted(shape: Shape) -> Result<()> {
    let (rig, web) = start(shape)?;
    let pins = rig.node(0)?.bpf().join(LAYOUT).join("links");
    let uplink = index(&rig, "eth0")?;
    for name in [format!("{uplink}-ingress"), format!("{uplink}-egress"), "connect4".into()] {
        std::fs::remove_file(pins.join(name))?;
    }
    let pod = index(&rig, rig.pod(0, 0)?.device())?;
    let pin = pins.join(format!("{pod}-ingress"));
    let pin = pin.to_str().context("a path in UTF-8")?;
    drop(rig.node(0)?.netns().tool("bpftool", &["link", "detach", "pinned", pin])?);
    wait_until_ok(SOON, "what was detached is attached again", || {
        let of = |fault| rig.agent(0)?.metric(&["lb_attachment_repairs_total", fault]);
        let (unpinned, detached) = (of("unpinned")?, of("detached")?);
        // A pin that is removed during an inspection was found, and its link was not.
        let is_reported = unpinned > 1.5 && detached > 0.5 && unpinned + detached > 3.5;
        ensure!(is_reported, "{unpinned} and {detached} repairs");
        is_served(&rig, &web)
    })
}

fn place_among_others_is_taken_back_and_others_stay(shape: Shape) -> Result<()> {
    let (rig, web) = start(shape)?;
    let uplink = index(&rig, "eth0")?;
    let ours = rig.node(0)?.links_at(uplink, Direction::Ingress)?;
    let mut foreign = PacketLog::Off.loader().load(datapath::object())?;
    // This object has its own, empty maps, so that its program passes every packet.
    let program: &mut SchedClassifier =
        foreign.program_mut("external_egress").context("a program")?.try_into()?;
    program.load()?;
    // The agent is stopped (SIGSTOP), because it would repair the order before it can be read.
    let agent = Pid::from_raw(rig.agent(0)?.id().cast_signed());
    kill(agent, Signal::SIGSTOP)?;
    let _attached = rig.node(0)?.netns().run_in(|| {
        let first = TcAttachOptions::TcxOrder(LinkOrder::first());
        program.attach_with_options("eth0", TcAttachType::Ingress, first)
    })??;
    let displaced = rig.node(0)?.links_at(uplink, Direction::Ingress)?;
    ensure!(displaced.len() == 2 && displaced[1] == ours[0], "{ours:?}, then {displaced:?}");
    kill(agent, Signal::SIGCONT)?;
    wait_until_ok(SOON, "ours is first again", || {
        let now = rig.node(0)?.links_at(uplink, Direction::Ingress)?;
        ensure!(now.len() == 2 && now[1] == displaced[0], "{now:?}");
        let counted = rig.agent(0)?.metric(&["lb_attachment_repairs_total", "displaced"])?;
        ensure!(counted > 0.5, "not counted");
        Ok(())
    })?;
    is_served(&rig, &web)
}

fn renamed_moved_and_recreated_interface_is_served(shape: Shape) -> Result<()> {
    let (mut rig, web) = start(shape)?;
    let (first, second) = (rig.pod(0, 0)?.device(), rig.pod(0, 1)?.device().to_owned());
    let netns = rig.node(0)?.netns();
    netns.ip(&format!("link set dev {first} name renamed0"))?;
    wait_until_ok(SOON, "status knows the new name", || {
        let status = rig.agent(0)?.command(&["status"])?;
        ensure!(status.contains("renamed0"), "{status}");
        Ok(())
    })?;
    is_served(&rig, &web)?;

    let elsewhere = Netns::new(&format!("{}-elsewhere", netns.name()))?;
    let moved = index(&rig, &second)?;
    let pin = rig.node(0)?.bpf().join(LAYOUT).join("links").join(format!("{moved}-ingress"));
    netns.ip(&format!("link set dev {second} netns {}", elsewhere.name()))?;
    wait_until_ok(SOON, "the pin of the moved interface is removed", || {
        ensure!(!pin.exists(), "{} still exists", pin.display());
        Ok(())
    })?;
    elsewhere.ip(&format!("link set dev {second} netns {}", netns.name()))?;
    netns.ip(&format!("link set dev {second} up"))?;
    wait_until_ok(SOON, "the returned interface has programs", || {
        let back = index(&rig, &second)?;
        ensure!(rig.node(0)?.links_at(back, Direction::Egress)?.len() == 1, "no program");
        Ok(())
    })?;
    // A new interface with the same name, once with the index of the one before and once with another index.
    for keeps_index in [true, false] {
        let before = index(&rig, &second)?;
        // The agent is stopped (SIGSTOP), because it might otherwise handle the end of the first interface before the
        // second one exists.
        let agent = Pid::from_raw(rig.agent(0)?.id().cast_signed());
        kill(agent, Signal::SIGSTOP)?;
        let made = rig.topology().rewire(0, 1, keeps_index.then_some(before));
        kill(agent, Signal::SIGCONT)?;
        made?;
        ensure!((index(&rig, &second)? == before) == keeps_index, "the index of {second}");
        for (family, protocol) in matrix() {
            until(rig.pod(0, 1)?, Ask::new(protocol, web.frontend(family)), Result::is_ok)?;
        }
        let back = index(&rig, &second)?;
        for direction in [Direction::Ingress, Direction::Egress] {
            let links = rig.node(0)?.links_at(back, direction)?;
            ensure!(links.len() == 1, "{direction:?} of {second}: {links:?}");
        }
    }
    netns.ip(&format!("link delete {second}"))?;
    drop(rig.add_pod(0)?.name().to_owned());
    for (family, protocol) in matrix() {
        until(rig.pod(0, 2)?, Ask::new(protocol, web.frontend(family)), Result::is_ok)?;
    }
    is_served(&rig, &web)?;
    // Interfaces that are removed and added are not a fault.
    rig.agent(0)?.warned_of_nothing()
}

/// It has neither an address of the Node object nor a default route, and its peer is in another namespace, as with a
/// pod's interface.
fn second_uplink_that_is_a_veth_is_external(shape: Shape) -> Result<()> {
    let mut rig = Rig::build(Topology::builder(shape).two_segments().rp_filter(2))?;
    let web = Service::new("web", 10)?.port(80, TARGET).node_port(NODE_PORT);
    rig.manifests().apply(&web.pods(&[rig.pod(0, 1)?, rig.pod(1, 1)?]))?;
    rig.start_agents(&["--nodeport-addresses=0.0.0.0/0,::/0"])?;
    let status = rig.agent(0)?.command(&["status"])?;
    let line = status.lines().find(|line| line.contains(" eth1 ")).context("no eth1")?;
    ensure!(line.contains("external"), "{line}");
    let second = Segment::Second.host(11)?;
    for family in Family::ALL {
        for _ in 0..10 {
            drop(ask(rig.client(), Ask::tcp(second.socket(family, NODE_PORT)))?);
        }
    }
    Ok(())
}
