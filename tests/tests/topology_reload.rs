//! Reloads of the agent, in its own process or in another one: `status` shows the running process and the roles of
//! interfaces, and two runs never make decisions at the same time.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_tests::manifest::Service;
use lb_tests::rig::{Rig, TARGET, ask, matrix, until};
use lb_tests::topology::{Family, Shape, Topology};
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;

/// The deadline for the agent to detect another file and to reload.
const SOON: Duration = Duration::from_mins(1);
const NODE_PORT: u16 = 30_080;

fn build() -> Result<(Rig, Service)> {
    let rig = Rig::build(Topology::builder(Shape::Routed).nodes(1))?;
    let web = Service::new("web", 10)?.port(80, TARGET).pods(&[rig.pod(0, 1)?]);
    rig.manifests().apply(&web)?;
    Ok((rig, web))
}

/// The kernel would name the process `exe` after a reload, and `pidof lb-agent` would not find it.
#[test]
fn status_detects_an_agent_that_restarted_in_its_process() -> Result<()> {
    let (mut rig, _) = build()?;
    let flag = rig.configuration("masquerade: edge")?;
    rig.start_agents(&[&flag])?;
    drop(rig.configuration("masquerade: kube-proxy")?);
    let agent = rig.agent(0)?;
    let runs = format!("running (process {})", agent.id());
    wait_until_ok(SOON, "the other configuration is in force", || {
        let status = agent.command(&["status"])?;
        ensure!(status.contains("masquerade kube-proxy"), "{status}");
        ensure!(status.contains(&runs), "{status}");
        Ok(())
    })?;
    let name = fs::read_to_string(format!("/proc/{}/comm", agent.id()))?;
    ensure!(name.trim_end() == "lb-agent", "the process is named {name}");
    // `status` must not keep the lock from an agent that needs it.
    let mut agent = rig.take_agent(0)?;
    agent.kill9()?;
    let status = agent.command(&["status"])?;
    ensure!(status.contains("not running"), "{status}");
    agent.start_again()
}

/// The backend of an open flow has seen the node's address, and would reset a connection that comes from another one.
#[test]
fn open_flows_keep_their_source_when_kube_proxys_masquerade_ends() -> Result<()> {
    let mut rig = with_masquerade()?;
    let agent = rig.take_agent(0)?;
    sources_stay_while(&rig, || {
        drop(rig.configuration("masquerade: edge")?);
        wait_until_ok(SOON, "the other configuration is in force", || {
            let status = agent.command(&["status"])?;
            ensure!(status.contains("masquerade edge"), "{status}");
            Ok(())
        })
    })
}

/// The flows are shared with the new layout, and the settings tell it that some are masqueraded.
#[test]
fn open_flows_keep_their_source_when_masquerade_ends_with_an_upgrade() -> Result<()> {
    masquerade_ends_with_an_upgrade(|_| Ok(()))
}

/// The new layout has other settings, so nothing tells it that some of the flows are masqueraded.
#[test]
fn open_flows_keep_their_source_when_an_upgrade_loses_the_settings() -> Result<()> {
    masquerade_ends_with_an_upgrade(|earlier| {
        let fingerprints = earlier.join("meanings");
        for mark in fs::read_dir(&fingerprints)?.flatten() {
            if mark.file_name().to_string_lossy().starts_with("SETTINGS-") {
                fs::rename(mark.path(), fingerprints.join("SETTINGS-0123456789abcdef"))?;
            }
        }
        Ok(())
    })
}

/// A renamed directory of pins looks like the state that an agent of another version would have left. `change` gets it.
fn masquerade_ends_with_an_upgrade(change: impl Fn(&Path) -> Result<()>) -> Result<()> {
    let mut rig = with_masquerade()?;
    let mut agent = rig.take_agent(0)?;
    sources_stay_while(&rig, || {
        agent.stop()?;
        let earlier = rig.node(0)?.bpf().join("v0");
        fs::rename(rig.node(0)?.bpf().join(LAYOUT), &earlier)?;
        change(&earlier)?;
        drop(rig.configuration("masquerade: edge")?);
        agent.start_again()
    })
}

/// A node whose agent masquerades as kube-proxy does, and a Service with a `NodePort`.
fn with_masquerade() -> Result<Rig> {
    let (mut rig, web) = build()?;
    rig.manifests().apply(&web.node_port(NODE_PORT))?;
    let flag = rig.configuration("masquerade: kube-proxy")?;
    rig.start_agents(&[&flag])?;
    Ok(rig)
}

/// Opens masqueraded flows of a pod, ends the masquerade by `end`, and checks that only new flows have the pod's
/// address.
fn sources_stay_while(rig: &Rig, end: impl FnOnce() -> Result<()>) -> Result<()> {
    let (node, pod) = (rig.node(0)?, rig.pod(0, 0)?);
    let question = |family, protocol| {
        Ask::new(protocol, SocketAddr::new(node.addresses().of(family), NODE_PORT))
    };
    let mut open = Vec::new();
    for (family, protocol) in matrix() {
        until(pod, question(family, protocol), Result::is_ok)?;
        let kept = pod.peer().keep(question(family, protocol))?;
        let client = kept.ask()?.client;
        ensure!(client.ip() == node.addresses().of(family), "{protocol:?} {client}");
        open.push((client, kept));
    }
    end()?;
    for (client, kept) in &open {
        let answer = kept.ask()?;
        ensure!(answer.client == *client, "{client} before, {answer:?}");
    }
    for (family, protocol) in matrix() {
        let answer = ask(pod, question(family, protocol))?;
        ensure!(answer.client.ip() == pod.addresses().of(family), "{answer:?}");
    }
    Ok(())
}

#[test]
fn status_shows_the_role_of_each_interface() -> Result<()> {
    let (mut rig, _) = build()?;
    rig.start_agents(&[
        "--detect-local-mode=InterfaceNamePrefix",
        "--pod-interface-name-prefix=eth",
    ])?;
    let pod = rig.pod(0, 0)?.device().to_owned();
    wait_until_ok(SOON, "status shows the roles of all interfaces", || {
        let status = rig.agent(0)?.command(&["status"])?;
        for (device, role) in [("eth0", "external"), (&*pod, "pod"), ("lo", "host")] {
            let mut lines = status.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let is_reported =
                lines.any(|words| words.get(..3) == Some(&["Interface", device, role]));
            ensure!(is_reported, "{device} as {role}: {status}");
        }
        Ok(())
    })
}

/// The programs of the other directory would still serve deleted Services.
#[test]
fn programs_of_another_directory_are_refused_by_its_name_until_it_is_cleaned_up() -> Result<()> {
    let (mut rig, web) = build()?;
    rig.start_agents(&[])?;
    let mut agent = rig.take_agent(0)?;
    agent.stop()?;
    let here = rig.node(0)?.bpf().display().to_string();
    let elsewhere = format!("{here}/other");
    agent.set_flag("--bpf-dir", &elsewhere);
    agent.spawn_again(&[])?;
    let remedy = format!("`lb-agent cleanup --bpf-dir {here}`");
    agent.refuses_to_run(&["has programs of another lb-agent", &here, &remedy])?;
    let question = Ask::tcp(web.frontend(Family::V4));
    drop(ask(rig.pod(0, 0)?, question)?);
    agent.set_flag("--bpf-dir", &here);
    drop(agent.command(&["cleanup"])?);
    agent.set_flag("--bpf-dir", &elsewhere);
    agent.start_again()?;
    drop(ask(rig.pod(0, 0)?, question)?);
    rig.manifests().delete(&web)?;
    until(rig.pod(0, 0)?, question.within(200), Result::is_err)
}
