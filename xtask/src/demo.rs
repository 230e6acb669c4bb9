//! `cargo xtask demo`: packets to a `ClusterIP` and a `NodePort`, answered while the user watches.
//!
//! A playground of network namespaces (one node, three pods, an external client), the agent with the manifests of
//! `deploy/demo/`, and real sockets. The demo does not touch the machine's own network.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;

use crate::step::step;
use crate::test::binaries;
use crate::{setup, shell, workspace};

mod playground;

use playground::{Playground, log, peer, run_at, start_at};

/// The options of the demo.
#[derive(Args)]
pub(crate) struct Options {
    /// Leave everything running at the end, and print commands to try
    #[arg(long)]
    keep: bool,
}

/// The `ClusterIP` and the `NodePort` of the Service `web` in `deploy/demo/web.yaml`: client, address, and description.
const FRONTENDS: [(&str, &str, &str); 4] = [
    ("pod-a3", "10.96.0.10:80", "ClusterIP, IPv4"),
    ("pod-a3", "[fd00:10:96::10]:80", "ClusterIP, IPv6"),
    ("client", "192.168.50.11:30080", "NodePort, IPv4"),
    ("client", "[fd00:50::11]:30080", "NodePort, IPv6"),
];
/// The port that every pod serves.
const TARGET: &str = "8080";

/// Shows what the agent does, in half a minute of reading.
pub(crate) fn run(options: &Options) -> Result<()> {
    shell::need_root("the demo creates network namespaces and loads eBPF programs", "demo")?;
    setup::for_running()?;
    binaries::build(&[])?;
    let mut playground =
        step("a node with three pods, and an external client", "1 s", Playground::make)?;
    step("servers in the pods, lb-agent on the node", "2 s", || start(&playground))?;
    print(&playground)?;
    if options.keep {
        playground.keep()?;
        explain_how_to_play(&playground);
        return Ok(());
    }
    step("clean up", "1 s", || playground.remove())
}

fn start(playground: &Playground) -> Result<()> {
    for pod in ["pod-a1", "pod-a2", "pod-a3"] {
        start_at(pod, &["serve", pod, TARGET])?;
    }
    for name in ["node.yaml", "web.yaml", "sticky.yaml"] {
        drop(put(playground, name)?);
    }
    playground.start_agent()?;
    run_at("node-a", &["ready", "127.0.0.1:10256"])
}

/// Copies a manifest into the directory that the agent watches.
fn put(playground: &Playground, name: &str) -> Result<PathBuf> {
    let source = workspace::root().join("deploy/demo").join(name);
    let file = source.file_name().context("name of a manifest")?;
    let target = playground.manifests().join(file);
    fs::copy(&source, &target).with_context(|| format!("manifest {}", source.display()))?;
    Ok(target)
}

/// The demo itself. The lines with the deepest indentation are output of programs.
fn print(playground: &Playground) -> Result<()> {
    heading("Which pod answers? One request each, over TCP and UDP");
    for (from, to, what) in FRONTENDS {
        for transport in ["tcp", "udp"] {
            said(&format!("{from} asks the {what}, {transport}"));
            run_at(from, &["ask", transport, to])?;
        }
    }
    heading("A process on the node itself: its socket is connected to a pod");
    for (to, transport) in [("10.96.0.10:80", "tcp"), ("[fd00:10:96::10]:80", "udp")] {
        said(&format!("node-a asks {to}, {transport}"));
        run_at("node-a", &["ask", transport, to])?;
    }
    heading("Distribution: 300 connections each");
    for (from, to, what) in FRONTENDS {
        said(&format!("{from} asks the {what}"));
        run_at(from, &["ask", "tcp", to, "300"])?;
    }
    heading("Affinity: service `sticky` keeps a client on one pod");
    for (from, to) in [("pod-a3", "10.96.0.20:80"), ("client", "192.168.50.11:30090")] {
        said(&format!("{from} asks {to}"));
        run_at(from, &["ask", "tcp", to, "300"])?;
    }
    heading("A backend is added and removed while the agent runs");
    said("cp deploy/demo/later/web-third-pod.yaml into the directory that the agent watches");
    let third = put(playground, "later/web-third-pod.yaml")?;
    run_at("client", &["ask", "tcp", "192.168.50.11:30080", "until", "pod-a3"])?;
    run_at("client", &["ask", "tcp", "192.168.50.11:30080", "300"])?;
    said("rm");
    fs::remove_file(third)?;
    run_at("client", &["ask", "tcp", "192.168.50.11:30080", "without", "pod-a3"])?;
    heading("lb-agent status");
    playground.agent(&["status"])?;
    heading("lb-agent lb list");
    playground.agent(&["lb", "list"])
}

fn explain_how_to_play(playground: &Playground) {
    let peer = peer().display().to_string();
    let manifests = playground.manifests().display().to_string();
    heading("Still running. Try:");
    println!("  {peer} at client ask tcp 192.168.50.11:30080 100");
    println!("  {peer} at pod-a3 ask udp '[fd00:10:96::10]:80'");
    println!("  {peer} at node-a ask tcp 10.96.0.10:80");
    println!("  ip netns exec lb-demo-client curl http://192.168.50.11:30080/");
    println!("  cp deploy/demo/later/web-third-pod.yaml {manifests}/");
    println!("  rm {manifests}/web-third-pod.yaml");
    for what in [&["status"][..], &["service", "list"], &["lb", "list"], &["ct", "list"]] {
        println!("  {}", playground.agent_command(what));
    }
    println!("  tail -f {}", log("lb-agent").display());
    println!("Remove it (the next demo does, too):");
    println!("  {peer} playground remove");
}

fn heading(text: &str) {
    println!("\n{text}");
}

fn said(text: &str) {
    println!("  {text}:");
}
