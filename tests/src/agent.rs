//! A running `lb-agent` on a node of a topology: tests start, query, kill and restart it as an operator would.
//!
//! The binary must be built first: `cargo build -p lb-agent` (`cargo xtask test` does it). `LB_AGENT` names another
//! binary. `LB_AGENT_BEFORE` names one that is used for the first start: with it, a test that restarts an agent tests
//! an upgrade.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::control_plane::ServiceAccount;
use crate::http;
use crate::process::{Home, Program, workspace_binary};
use crate::topology::Node;
use crate::wait::try_wait_until;

mod answers;
mod starts;

/// The deadline for a start: the agent loads its programs and reads every object first.
const START: Duration = Duration::from_mins(1);
/// The number of log lines that a failed test shows.
const SHOWN_LINES: usize = 120;

/// The source of an agent's Services and other objects.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// A directory of manifests.
    Manifests(&'a Path),
    /// The API server that a kubeconfig names.
    Kubeconfig(&'a Path),
    /// The API server that the environment of a pod names, with the credentials of this service account.
    InPod(&'a ServiceAccount),
    /// The API server that a `--config` file names, with the credentials of this service account.
    Config(&'a Path, &'a ServiceAccount),
}

/// An agent that runs, or has run, on a node.
#[derive(Debug)]
pub struct Agent {
    program: Program,
    home: Home,
    binary: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    node: String,
    log: PathBuf,
    /// A program with its arguments through which later starts run the binary; empty for a direct start.
    before: Vec<String>,
    is_hushed: bool,
}

impl Agent {
    /// Starts an agent and returns when every object that it knows is programmed.
    pub fn start(node: &Node, source: Source<'_>, more: &[&str]) -> Result<Self> {
        let mut agent = Self::spawn(node, source, more)?;
        agent.wait_ready()?;
        Ok(agent)
    }

    /// Starts an agent and returns at once.
    pub fn spawn(node: &Node, source: Source<'_>, more: &[&str]) -> Result<Self> {
        let binary = workspace_binary("lb-agent", "LB_AGENT")?;
        let (mut home, mut environment) = (node.home().clone(), Vec::new());
        let mut arguments = vec!["run".to_owned()];
        match source {
            Source::Manifests(path) => arguments.push(format!("--manifests={}", path.display())),
            Source::Kubeconfig(path) => arguments.push(format!("--kubeconfig={}", path.display())),
            Source::InPod(account) => {
                home = home.with_service_account(account.directory());
                environment.extend(account.environment());
            }
            Source::Config(file, account) => {
                home = home.with_service_account(account.directory());
                arguments.push(format!("--config={}", file.display()));
            }
        }
        for (flag, value) in [
            ("--hostname-override", node.name()),
            ("--bpf-dir", &node.bpf().to_string_lossy()),
            ("--cgroup", &node.cgroup().to_string_lossy()),
        ] {
            arguments.extend([flag.to_owned(), value.to_owned()]);
        }
        if !matches!(source, Source::Config(..)) {
            arguments.push(format!("--healthz-bind-address={}", Self::healthz()));
            arguments.push(format!("--metrics-bind-address={}", Self::metrics_address()));
        }
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let log = node.directory().join("lb-agent.log");
        let before = std::env::var_os("LB_AGENT_BEFORE").map(PathBuf::from);
        let first = before.as_deref().unwrap_or(&binary);
        let command = home.command(existing(first)?)?;
        let program = launch(command, &arguments, &log, &environment)?;
        let node = node.name().to_owned();
        Ok(Self {
            program,
            home,
            binary,
            arguments,
            environment,
            node,
            log,
            before: Vec::new(),
            is_hushed: false,
        })
    }

    /// Starts agents on all of these nodes at once, because they are independent of each other. Returns when every
    /// object that each of them knows is programmed.
    pub fn start_all<'a>(
        nodes: impl IntoIterator<Item = (&'a Node, Source<'a>)>,
        more: &[&str],
    ) -> Result<Vec<Self>> {
        let agents = nodes.into_iter().map(|(node, source)| Self::spawn(node, source, more));
        let mut agents: Vec<Self> = agents.collect::<Result<_>>()?;
        agents.iter_mut().try_for_each(Self::wait_ready)?;
        Ok(agents)
    }

    /// Waits until every object that the agent knows is programmed (`/readyz`).
    pub fn wait_ready(&mut self) -> Result<()> {
        let (program, home) = (&mut self.program, &self.home);
        try_wait_until(START, &format!("lb-agent of {} is ready", self.node), || {
            program.ensure_running()?;
            let answer = http::get(home, Self::healthz(), "/readyz");
            Ok(answer.is_ok_and(|(status, _)| status == 200).then_some(()))
        })
    }

    /// Kills the agent with SIGKILL, as a crash would; its data path stays active.
    pub fn kill9(&mut self) -> Result<()> {
        self.program.kill9().map(drop)
    }

    /// Stops the agent with SIGTERM; its data path stays active. Fails unless the exit code is 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.program.terminate()?;
        ensure!(status.success(), "lb-agent of {} ended with {status}", self.node);
        Ok(())
    }

    /// Stops the agent as [`Agent::stop`] does, and does not print its log. For programs whose output no test runner
    /// hides.
    pub fn stop_quietly(&mut self) -> Result<()> {
        self.stop()?;
        self.is_hushed = true;
        Ok(())
    }

    /// Stops the agent and removes its data path and its log: the next agent of the node starts on a clean node.
    pub fn clear(mut self) -> Result<()> {
        self.stop_quietly()?;
        drop(self.command(&["cleanup"])?);
        fs::remove_file(&self.log).with_context(|| format!("log {}", self.log.display()))
    }

    /// Waits until the agent ends by itself. Fails unless its exit code is 1 and the last line of its log contains all
    /// of `parts`.
    pub fn refuses_to_run(&mut self, parts: &[&str]) -> Result<()> {
        let status = self.program.wait_end()?;
        let said = self.log_end(1);
        ensure!(status.code() == Some(1), "the agent ended with {status}: {said}");
        for part in parts {
            ensure!(said.contains(part), "the agent does not say {part:?}: {said}");
        }
        Ok(())
    }

    /// Restarts the agent after it has ended, and returns when it is ready.
    pub fn start_again(&mut self) -> Result<()> {
        self.spawn_again(&[])?;
        self.wait_ready()
    }

    /// Restarts the agent after it has ended, with additional environment variables, and returns when it is ready.
    pub fn start_again_with(&mut self, environment: &[(&str, &str)]) -> Result<()> {
        self.spawn_again(environment)?;
        self.wait_ready()
    }

    /// Restarts the agent after it has ended, with additional environment variables, and returns at once.
    pub fn spawn_again(&mut self, environment: &[(&str, &str)]) -> Result<()> {
        let binary = existing(&self.binary)?;
        let command = match self.before.split_first() {
            None => self.home.command(binary)?,
            Some((program, arguments)) => {
                let mut command = self.home.command(Path::new(program))?;
                command.args(arguments).arg(binary);
                command
            }
        };
        let more = environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let environment: Vec<_> = self.environment.iter().cloned().chain(more).collect();
        self.program = launch(command, &self.arguments, &self.log, &environment)?;
        Ok(())
    }

    /// Returns the process id of the last run.
    pub fn id(&self) -> u32 {
        self.program.id()
    }

    /// Fails, with the end of the log, if the agent has ended.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.program.ensure_running()
    }

    /// Returns the last lines of the agent's log.
    pub fn log_end(&self, lines: usize) -> String {
        self.program.log_end(lines)
    }

    /// Fails if the last 1,000 lines of the log contain a warning.
    pub fn warned_of_nothing(&self) -> Result<()> {
        let log = self.log_end(1_000);
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
        ensure!(warnings.is_empty(), "{warnings:#?}");
        Ok(())
    }

    fn healthz() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 10_256))
    }

    /// Returns the address at which agents serve metrics.
    pub fn metrics_address() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 10_249))
    }
}

impl Drop for Agent {
    #[expect(clippy::print_stdout, reason = "the test runner shows it when a test fails")]
    fn drop(&mut self) {
        if !self.is_hushed {
            println!("--- lb-agent of {}:\n{}", self.node, self.program.log_end(SHOWN_LINES));
        }
    }
}

fn existing(binary: &Path) -> Result<&Path> {
    let remedy = "remedy: cargo build -p lb-agent";
    ensure!(binary.is_file(), "agent binary {} is missing\n{remedy}", binary.display());
    Ok(binary)
}

fn launch(
    mut command: Command,
    arguments: &[String],
    log: &Path,
    environment: &[(String, String)],
) -> Result<Program> {
    // The agent logs at its default level, whatever RUST_LOG of the test run is.
    command.args(arguments).env_remove("RUST_LOG").env("NO_COLOR", "1");
    command.envs(environment.iter().cloned());
    Program::spawn("lb-agent", command, log)
}
