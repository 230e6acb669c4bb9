//! A topology for people: one node, three pods and a client, with names that are easy to type.
//!
//! `cargo xtask demo` runs in it. It ends with the process that started it, unless that process asks for it to stay.

use std::fs;
use std::io::{self, BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use nix::sched::{CloneFlags, setns};

use crate::netns::NAMES;
use crate::topology::{Shape, Topology, leftovers};

/// The prefix of its namespaces, and the name of its directory in `/run` and of its cgroup.
pub const NAME: &str = "lb-demo";

/// Builds the playground, prints its members, and removes it when the input ends; the line `keep` on the input keeps
/// it.
pub fn hold() -> Result<()> {
    let topology = Topology::builder(Shape::Routed).nodes(1).pods(3).kept_as(NAME).build()?;
    let mut output = io::stdout().lock();
    for member in topology.members() {
        let [v4, v6] = member.addresses().both();
        writeln!(output, "  {:8} {v4:15} {v6}", member.name())?;
    }
    let node = topology.node(0)?;
    writeln!(output, "bpf-dir {}", node.bpf().display())?;
    writeln!(output, "cgroup {}", node.cgroup().display())?;
    writeln!(output, "manifests {}", topology.directory("manifests")?.display())?;
    writeln!(output)?;
    output.flush()?;
    drop(output);
    let mut order = String::new();
    io::stdin().lock().read_line(&mut order)?;
    if order.trim() == "keep" { Ok(()) } else { remove() }
}

/// Removes the playground, with every process in it.
pub fn remove() -> Result<()> {
    leftovers::remove_named(NAME)
}

/// Moves this process into the namespace and cgroup of `member`.
pub fn enter(member: &str) -> Result<()> {
    let netns = Path::new(NAMES).join(format!("{NAME}-{member}"));
    let handle = fs::File::open(&netns).with_context(|| {
        format!("namespace {}\nremedy: cargo xtask demo --keep creates it", netns.display())
    })?;
    if let Some(cgroup) = cgroup_of(member)? {
        let members = cgroup.join("cgroup.procs");
        fs::write(&members, "0").with_context(|| format!("cgroup {}", members.display()))?;
    }
    setns(handle, CloneFlags::CLONE_NEWNET).with_context(|| netns.display().to_string())
}

/// Executes a program in place of this process; returns only on failure.
pub fn become_program(words: &[&str]) -> Result<()> {
    let [program, arguments @ ..] = words else { bail!("no program was named") };
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("program {program}"))
}

/// The cgroup of a member: pods and hosts live in the cgroup of their node, the client in none of the playground.
fn cgroup_of(member: &str) -> Result<Option<PathBuf>> {
    let (kind, letter) = match member.split_once('-') {
        Some(("pod", rest)) => ("pods", rest.chars().next()),
        Some(("node", rest)) => ("host", rest.chars().next()),
        _ => return Ok(None),
    };
    let node = format!("{NAME}/node-{}", letter.unwrap_or_default());
    Ok(Some(leftovers::cgroup2()?.join(node).join(kind)))
}
