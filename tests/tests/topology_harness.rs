//! The harness itself: with plain routing every member reaches every other one, and a topology leaves nothing behind.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::process::workspace_binary;
use lb_tests::rig::matrix;
use lb_tests::topology::{Builder, Family, Member, Shape, Topology};
use lb_tests::traffic::{Ask, Capture, Failure, Protocol, Raw};
use lb_tests::wait::wait_until;

const PORT: u16 = 7;

/// All members ask all others, in both families and with both transports.
fn everybody_reaches_everybody(builder: Builder) -> Result<()> {
    let topology = builder.build()?;
    let members = topology.members();
    for member in &members {
        for protocol in Protocol::ALL {
            member.peer().serve(protocol, &member.addresses().both(), PORT)?;
        }
    }
    for from in &members {
        for to in &members {
            talk(from, to)?;
        }
    }
    Ok(())
}

fn talk(from: &Member, to: &Member) -> Result<()> {
    for (family, protocol) in matrix() {
        let what = format!("{} asks {} over {family} {protocol}", from.name(), to.name());
        let ask = Ask::new(protocol, to.addresses().socket(family, PORT));
        let answer = from.peer().ask(ask);
        ensure!(answer.as_ref().is_ok_and(|a| a.server == to.name()), "{what}: {answer:?}");
        if protocol == Protocol::Udp {
            let answer = from.peer().ask(ask.unconnected());
            ensure!(answer.is_ok_and(|a| a.peer == ask.to), "{what}, unconnected");
        }
    }
    Ok(())
}

#[test]
fn everybody_reaches_everybody_with_routed_pods() -> Result<()> {
    everybody_reaches_everybody(Topology::builder(Shape::Routed))
}

#[test]
fn everybody_reaches_everybody_with_bridged_pods() -> Result<()> {
    everybody_reaches_everybody(Topology::builder(Shape::Bridged))
}

#[test]
fn everybody_reaches_everybody_over_an_overlay() -> Result<()> {
    everybody_reaches_everybody(Topology::builder(Shape::Bridged).pods(1).overlay())
}

#[test]
fn everybody_reaches_everybody_with_two_segments() -> Result<()> {
    everybody_reaches_everybody(Topology::builder(Shape::Routed).pods(1).two_segments())
}

#[test]
fn pods_reach_outside_through_a_firewall_that_masquerades_them() -> Result<()> {
    let topology = Topology::builder(Shape::Routed).firewall().build()?;
    let (client, pod) = (topology.client(), topology.node(0)?.pod(0)?);
    client.peer().serve(Protocol::Tcp, &client.addresses().both(), PORT)?;
    for family in Family::ALL {
        let answer = pod.peer().ask(Ask::tcp(client.addresses().socket(family, PORT)))?;
        assert_eq!(answer.client.ip(), topology.node(0)?.ip(family));
    }
    Ok(())
}

#[test]
fn failures_are_distinguished() -> Result<()> {
    let topology = Topology::builder(Shape::Routed).nodes(1).pods(1).build()?;
    let (client, node) = (topology.client(), topology.node(0)?);
    let pod = node.pod(0)?;
    for (family, protocol) in matrix() {
        let closed = Ask::new(protocol, pod.addresses().socket(family, PORT));
        assert_eq!(client.peer().ask(closed), Err(Failure::Refused), "{family} {protocol}");
    }
    for family in Family::ALL {
        let closed = Ask::udp(pod.addresses().socket(family, PORT)).unconnected();
        assert_eq!(client.peer().ask(closed), Err(Failure::Refused), "{family} unconnected");
    }
    let rules = "table inet t { chain i { type filter hook input priority 0; policy drop; }; }";
    drop(pod.netns().tool_fed("nft", &["-f", "-"], rules)?);
    let dropped = Ask::tcp(pod.addresses().socket(Family::V4, PORT)).within(300);
    assert_eq!(client.peer().ask(dropped), Err(Failure::TimedOut));
    Ok(())
}

#[test]
fn large_questions_and_answers_arrive_whole() -> Result<()> {
    for builder in [
        Topology::builder(Shape::Routed),
        Topology::builder(Shape::Bridged).without_checksum_offload(),
    ] {
        let topology = builder.pods(1).build()?;
        let (client, server) = (topology.client(), topology.node(0)?.pod(0)?);
        for (family, protocol) in matrix() {
            server.peer().serve(protocol, &[server.ip(family)], PORT)?;
            let size = if protocol == Protocol::Tcp { 300_000 } else { 20_000 };
            let ask = Ask::new(protocol, server.addresses().socket(family, PORT));
            let answer = client.peer().ask(ask.sized(size, size));
            ensure!(answer.is_ok(), "{family} {protocol}: {answer:?}");
        }
    }
    Ok(())
}

/// Captures one question and its answer in the pod, and returns whether their checksums were partial.
fn captured_is_partial(builder: Builder) -> Result<bool> {
    let topology = builder.pods(1).build()?;
    let (client, server) = (topology.client(), topology.node(0)?.pod(0)?);
    let capture = Capture::start(server.netns(), "eth0")?;
    for (family, protocol) in matrix() {
        server.peer().serve(protocol, &[server.ip(family)], PORT)?;
        let ask = Ask::new(protocol, server.addresses().socket(family, PORT));
        drop(client.peer().ask(ask)?);
        let to_server = |frame: &lb_tests::traffic::Frame| frame.destination() == Some(ask.to);
        drop(capture.wait_for("the question", to_server)?);
    }
    capture.ensure_checksums()?;
    Ok(capture.count(|frame| frame.partial && frame.outgoing) > 0)
}

#[test]
fn captured_checksums_are_verified_partial_or_whole() -> Result<()> {
    assert!(captured_is_partial(Topology::builder(Shape::Routed))?);
    assert!(!captured_is_partial(Topology::builder(Shape::Bridged).without_checksum_offload())?);
    Ok(())
}

#[test]
fn raw_frames_pass_as_they_are() -> Result<()> {
    let topology = Topology::builder(Shape::Bridged).nodes(1).pods(2).build()?;
    let (sender, receiver) = (topology.node(0)?.pod(0)?, topology.node(0)?.pod(1)?);
    let capture = Capture::start(receiver.netns(), "eth0")?;
    let mut frame = Vec::from(receiver.hardware_address("eth0")?);
    frame.extend(sender.hardware_address("eth0")?);
    frame.extend([0x88, 0xb5, 1, 2, 3]);
    Raw::open(sender.netns(), "eth0")?.send(&frame)?;
    drop(capture.wait_for("the frame", |captured| captured.bytes.starts_with(&frame))?);
    Ok(())
}

#[test]
fn processes_of_a_node_live_in_its_cgroup() -> Result<()> {
    let topology = Topology::builder(Shape::Routed).nodes(1).pods(1).build()?;
    let node = topology.node(0)?;
    for part in ["host", "pods"] {
        let members = fs::read_to_string(node.cgroup().join(part).join("cgroup.procs"))?;
        assert_eq!(members.lines().count(), 1, "{part}");
    }
    Ok(())
}

/// The owner of a topology is killed; the janitor must remove the topology.
#[test]
fn nothing_stays_behind_a_process_that_is_killed() -> Result<()> {
    let mut holder = Command::new(workspace_binary("lb-test-peer", "LB_TEST_PEER")?);
    let holder = holder.args(["topology", "hold"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn()?;
    let said = BufReader::new(holder.stdout.take().context("no output")?).lines();
    let traces: Vec<PathBuf> = said.take(3).map(|line| Ok(line?.into())).collect::<Result<_>>()?;
    let all_exist = traces.len() == 3 && traces.iter().all(|trace| trace.exists());
    // Before any assertion, because an orphaned holder would wait for ever.
    holder.kill()?;
    holder.wait()?;
    ensure!(all_exist, "not all of {traces:?} were there");
    for trace in traces {
        wait_until(Duration::from_mins(1), &format!("{} is gone", trace.display()), || {
            (!trace.exists()).then_some(())
        })?;
    }
    Ok(())
}

#[test]
fn nothing_stays_behind() -> Result<()> {
    let topology = Topology::builder(Shape::Bridged).nodes(1).pods(1).build()?;
    let node = topology.node(0)?;
    let traces = node.traces();
    assert!(traces.iter().all(|trace| trace.exists()));
    drop(topology);
    for trace in traces {
        ensure!(!trace.exists(), "{} still exists", trace.display());
    }
    Ok(())
}
