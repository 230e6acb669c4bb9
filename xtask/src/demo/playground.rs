//! The playground of the demo, which `lb-test-peer` builds, and commands that run as one of its members.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{shell, workspace};

/// The directory of its logs; its namespaces have the same name as a prefix.
const DIRECTORY: &str = "/run/lb-demo";

/// A playground. It is removed when this process ends for any reason, unless it is kept.
pub(crate) struct Playground {
    holder: Child,
    facts: BTreeMap<String, String>,
}

impl Playground {
    /// Builds a playground; one that an earlier demo left is removed first.
    pub(crate) fn make() -> Result<Self> {
        if Path::new(DIRECTORY).exists() {
            println!("  removing the playground that an earlier demo left in {DIRECTORY}");
        }
        let mut holder = Command::new(peer())
            .args(["playground", "hold"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // An interrupt from the terminal must not reach it, because it cleans up after this process.
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {} playground hold", peer().display()))?;
        let output = holder.stdout.take().context("no pipe from lb-test-peer playground hold")?;
        let mut facts = BTreeMap::new();
        for line in BufReader::new(output).lines() {
            let line = line.context("read what lb-test-peer playground hold says")?;
            if line.is_empty() {
                return Ok(Self { holder, facts });
            }
            match line.split_once(' ') {
                Some((name, value)) if !name.is_empty() => {
                    drop(facts.insert(name.to_owned(), value.to_owned()));
                }
                _ => println!("  {line}"),
            }
        }
        let status = holder.wait()?;
        bail!("lb-test-peer playground hold made no playground and ended with {status}")
    }

    /// Keeps the playground when this process ends.
    pub(crate) fn keep(&mut self) -> Result<()> {
        self.end("keep\n")
    }

    /// Removes the playground, with every process in it.
    pub(crate) fn remove(mut self) -> Result<()> {
        self.end("remove\n")
    }

    /// Starts the agent on the node.
    pub(crate) fn start_agent(&self) -> Result<()> {
        let mut command = command_at("node-a");
        let agent = binary("lb-agent");
        command.arg(agent).args(["run", "--hostname-override", "node-a"]);
        for fact in ["manifests", "bpf-dir", "cgroup"] {
            command.arg(format!("--{fact}")).arg(self.fact(fact));
        }
        spawn("lb-agent", &mut command)
    }

    /// Runs another command of the agent, and shows its output.
    pub(crate) fn agent(&self, words: &[&str]) -> Result<()> {
        let mut command = command_at("node-a");
        command.arg(binary("lb-agent")).args(words).arg("--bpf-dir").arg(self.fact("bpf-dir"));
        indented(&mut command)
    }

    /// Spells a command of the agent for a person to type. It runs in the node's namespace, because interface names are
    /// valid only there.
    pub(crate) fn agent_command(&self, words: &[&str]) -> String {
        let (agent, words) = (binary("lb-agent"), words.join(" "));
        let place = "nsenter --net=/run/netns/lb-demo-node-a";
        format!("{place} {} {words} --bpf-dir {}", agent.display(), self.fact("bpf-dir"))
    }

    /// Returns the directory that the agent watches.
    pub(crate) fn manifests(&self) -> &Path {
        Path::new(self.fact("manifests"))
    }

    fn fact(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", String::as_str)
    }

    fn end(&mut self, order: &str) -> Result<()> {
        let what = || format!("tell the playground to {}", order.trim());
        let mut orders = self.holder.stdin.take().with_context(what)?;
        orders.write_all(order.as_bytes()).with_context(what)?;
        drop(orders);
        let status = self.holder.wait()?;
        ensure!(status.success(), "{}: it ended with {status}", what());
        Ok(())
    }
}

/// Runs a command of `lb-test-peer` as `member`, and shows its output.
pub(crate) fn run_at(member: &str, words: &[&str]) -> Result<()> {
    indented(command_at(member).args(words))
}

/// Starts a command of `lb-test-peer` as `member`, which keeps running.
pub(crate) fn start_at(member: &str, words: &[&str]) -> Result<()> {
    spawn(member, command_at(member).args(words))
}

fn indented(command: &mut Command) -> Result<()> {
    let said = shell::output(command, "look into /run/lb-demo/*.log")?;
    said.lines().for_each(|line| println!("    {line}"));
    Ok(())
}

fn command_at(member: &str) -> Command {
    let mut command = Command::new(peer());
    command.args(["at", member]);
    command
}

fn spawn(name: &str, command: &mut Command) -> Result<()> {
    let log = log(name);
    let output = File::create(&log).with_context(|| format!("log {}", log.display()))?;
    let child = command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .spawn()
        .with_context(|| format!("start {name}"))?;
    // It ends with the playground, not with this process.
    drop(child);
    Ok(())
}

/// Returns the path of `lb-test-peer`.
pub(crate) fn peer() -> PathBuf {
    binary("lb-test-peer")
}

/// Returns the log file of a program.
pub(crate) fn log(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{name}.log"))
}

/// Returns the path of a binary of the debug build.
fn binary(name: &str) -> PathBuf {
    workspace::target().join("debug").join(name)
}
