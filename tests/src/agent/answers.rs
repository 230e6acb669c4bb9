//! Queries to a running agent: its metrics, its HTTP pages, and the output of other `lb-agent` commands beside it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::Agent;
use crate::http;
use crate::memory::MemoryLimit;
use crate::process::{Home, Program, output, run};
use crate::wait::wait_until_ok;

/// The deadline for a closed flow to disappear from lists: it lasts ten seconds, and until the next sweep.
const SWEPT: Duration = Duration::from_mins(1);

impl Agent {
    /// Returns the metrics by name and labels, as they are written: `name{label="value"}`.
    pub fn metrics(&self) -> Result<BTreeMap<String, f64>> {
        let text = self.metrics_text()?;
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, value)| {
                Ok((name.to_owned(), value.parse().with_context(|| format!("metric {name}"))?))
            })
            .collect()
    }

    /// Returns the page `/metrics` as text.
    pub fn metrics_text(&self) -> Result<String> {
        let (status, text) = http::get(&self.home, Self::metrics_address(), "/metrics")?;
        ensure!(status == 200, "/metrics answered with {status}");
        Ok(text)
    }

    /// Returns the sum of the metrics whose name and labels contain all of `parts`.
    pub fn metric(&self, parts: &[&str]) -> Result<f64> {
        let metrics = self.metrics()?;
        let matches = |name: &str| parts.iter().all(|part| name.contains(part));
        Ok(metrics.iter().filter(|(name, _)| matches(name)).map(|(_, value)| value).sum())
    }

    /// Returns status code and body of a path of the health server.
    pub fn health(&self, path: &str) -> Result<(u16, String)> {
        http::get(&self.home, Self::healthz(), path)
    }

    /// Fails unless `status`, the metric and `/healthz` report this number of problems of the node. `/healthz` must
    /// stay good.
    pub fn has_problems(&self, expected: usize) -> Result<()> {
        let (code, said) = self.ended(&["status"])?;
        let named = said.lines().filter(|line| line.starts_with("Problem")).count();
        let is_bad = i32::from(expected > 0);
        ensure!((named, code) == (expected, is_bad), "{expected} problems, {code}: {said}");
        let counted = self.metric(&["lb_node_problems"])?;
        ensure!((counted - expected as f64).abs() < 0.5, "the metric counts {counted}: {said}");
        let (code, body) = self.health("/healthz")?;
        let field = format!("\"nodeProblems\":{expected},");
        let is_reported = body.replace('}', ",").contains(&field);
        let is_reported = if expected > 0 { is_reported } else { !body.contains("nodeProblems") };
        ensure!(code == 200 && is_reported, "{expected} problems, /healthz {code}: {body}");
        Ok(())
    }

    /// Returns status code and body of a path of the metrics server, with this `Accept` header.
    pub fn page(&self, path: &str, accept: &str) -> Result<(u16, String)> {
        http::get_as(&self.home, Self::metrics_address(), path, accept)
    }

    /// Runs another command of the agent, such as `lb list`, with the pins of this node; returns its output.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        run(&mut self.prepared(arguments)?, "")
    }

    /// Runs another command of the agent, and returns its exit code and its standard error.
    pub fn exit_code(&self, arguments: &[&str]) -> Result<(i32, String)> {
        let output = self.outcome(arguments)?;
        let code = output.status.code().context("ended by a signal")?;
        Ok((code, String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Waits until no flow of a Service to a port of its backends is listed: closed flows disappear within seconds.
    pub fn until_no_flow(&self, service: &str, port: u16) -> Result<()> {
        wait_until_ok(SWEPT, "closed flows are swept", || {
            let flows = self.command(&["ct", "list", "--service", service])?;
            let left = flows.lines().filter(|line| line.contains(&format!(":{port}"))).count();
            ensure!(left == 0, "{left} flows of {service} are still listed:\n{flows}");
            Ok(())
        })
    }

    /// Runs another command of the agent, and returns its output, whatever its exit code.
    pub fn exit_said(&self, arguments: &[&str]) -> Result<String> {
        let output = self.outcome(arguments)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs another command of the agent, and returns its exit code and its output.
    pub fn ended(&self, arguments: &[&str]) -> Result<(i32, String)> {
        let output = self.outcome(arguments)?;
        let code = output.status.code().context("ended by a signal")?;
        Ok((code, String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    /// Runs another command of the agent in another network namespace. Returns its exit code, and its output with its
    /// standard error.
    pub fn ended_in(&self, home: &Home, arguments: &[&str]) -> Result<(i32, String)> {
        let output = output(&mut self.prepared_in(home.command(&self.binary)?, arguments), "")?;
        let code = output.status.code().context("ended by a signal")?;
        let said = [output.stdout, output.stderr].concat();
        Ok((code, String::from_utf8_lossy(&said).into_owned()))
    }

    /// Runs another command of the agent and reads its output. Returns the number of lines and the peak of the
    /// command's memory in bytes. The peak is read while the last lines are still in the pipe, so that the process
    /// still exists.
    pub fn peak_memory(&self, arguments: &[&str]) -> Result<(usize, u64)> {
        self.read_to_the_end(arguments, None)
    }

    /// Runs another command of the agent as a member of the agent's memory cgroup, as a command in the agent's
    /// container is; returns its lines.
    pub fn lines_within(&self, limit: &MemoryLimit, arguments: &[&str]) -> Result<usize> {
        Ok(self.read_to_the_end(arguments, Some(limit))?.0)
    }

    fn read_to_the_end(
        &self,
        arguments: &[&str],
        limit: Option<&MemoryLimit>,
    ) -> Result<(usize, u64)> {
        let mut child = self.prepared(arguments)?.stdout(Stdio::piped()).spawn()?;
        if let Some(limit) = limit {
            fs::write(limit.members(), child.id().to_string())?;
        }
        let status = format!("/proc/{}/status", child.id());
        let mut said = child.stdout.take().context("a pipe")?;
        let (mut lines, mut peak, mut buffer) = (0, 0, vec![0; 64 << 10]);
        loop {
            // Only a process that has ended has no such line.
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            if let Some(line) = line {
                let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
                peak = peak.max(kibibytes << 10);
            }
            let count = said.read(&mut buffer)?;
            let read = buffer.get(..count).unwrap_or_default();
            lines += read.split(|byte| *byte == b'\n').count() - 1;
            if count == 0 {
                break;
            }
        }
        let status = child.wait()?;
        ensure!(status.success(), "{arguments:?} ended with {status}");
        Ok((lines, peak))
    }

    /// Runs another command of the agent whose output goes to a closed pipe, and returns its exit code and its standard
    /// error.
    pub fn unread(&self, arguments: &[&str]) -> Result<(i32, String)> {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let output = self.prepared(arguments)?.stdout(writer).output()?;
        let code = output.status.code().context("ended by a signal")?;
        Ok((code, String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Starts another command of the agent; its output is appended to the file `log`.
    pub fn start_command(&self, arguments: &[&str], log: &Path) -> Result<Program> {
        Program::spawn("a command of lb-agent", self.prepared(arguments)?, log)
    }

    fn outcome(&self, arguments: &[&str]) -> Result<Output> {
        output(&mut self.prepared(arguments)?, "")
    }

    fn prepared(&self, arguments: &[&str]) -> Result<Command> {
        Ok(self.prepared_in(self.home.command(&self.binary)?, arguments))
    }

    fn prepared_in(&self, mut command: Command, arguments: &[&str]) -> Command {
        command.args(arguments);
        for flag in ["--bpf-dir", "--cgroup"] {
            let value = self.arguments.iter().skip_while(|argument| *argument != flag).nth(1);
            // A file of `--config` names its own directory of pins.
            let has_file = arguments.iter().any(|argument| argument.starts_with("--config="));
            let takes_it =
                flag == "--bpf-dir" && !has_file || arguments.first() == Some(&"cleanup");
            if let Some(value) = value.filter(|_| takes_it) {
                command.args([flag, value]);
            }
        }
        command
    }
}
