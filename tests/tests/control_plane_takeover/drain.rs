//! The command `cleanup --drain --after-rules` on a node: it starts before kube-proxy, and ends when kube-proxy serves
//! alone.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::agent::Agent;
use lb_tests::process::Program;
use lb_tests::topology::Node;
use lb_tests::wait::{try_wait_until, wait_until_ok};

use super::SOON;

/// The deadline for flows to end.
const LONG: Duration = Duration::from_mins(3);

/// A running `cleanup --drain` command.
pub(crate) struct Drain {
    program: Program,
    log: PathBuf,
}

impl Drain {
    /// Starts the command, and returns when netfilter knows all flows.
    pub(crate) fn start(agent: &Agent, node: &Node) -> Result<Self> {
        let log = node.directory().join("drain.log");
        let program = agent.start_command(&["cleanup", "--drain", "--after-rules"], &log)?;
        let drain = Self { program, log };
        wait_until_ok(SOON, "every flow is reserved", || {
            let said = drain.said()?;
            ensure!(said.contains("every flow is reserved"), "{said}");
            Ok(())
        })?;
        Ok(drain)
    }

    /// Whether the command still waits for flows.
    pub(crate) fn is_under_way(&mut self) -> bool {
        self.program.ensure_running().is_ok()
    }

    /// Waits for the end of the command, and fails unless no flow and no program is left.
    pub(crate) fn end(mut self) -> Result<()> {
        try_wait_until(LONG, "a drained node", || Ok((!self.is_under_way()).then_some(())))?;
        let (status, said) = (self.program.wait_end()?, self.said()?);
        ensure!(status.success(), "cleanup exited with {status}: {said}");
        ensure!(said.contains("0 flows left") && said.contains("removed"), "{said}");
        ensure!(!said.contains("warning"), "{said}");
        Ok(())
    }

    fn said(&self) -> Result<String> {
        fs::read_to_string(&self.log).with_context(|| format!("read {}", self.log.display()))
    }
}

/// Starts the command on every node.
pub(crate) fn start_all(agents: &[Agent], nodes: &[Node]) -> Result<Vec<Drain>> {
    agents.iter().zip(nodes).map(|(agent, node)| Drain::start(agent, node)).collect()
}
