//! A server as a child process: in a network namespace, with a log, and never outliving its test.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// How much of a log an error quotes.
const QUOTED_LINES: usize = 20;

/// Returns a command that runs `program` in the network namespace `netns`, or where the caller is.
///
/// Both wrappers replace themselves by the next program, so the child's process id is the program's.
/// The kernel kills it when the *thread* that started it ends: start servers in the test that uses
/// them, not in a thread that ends earlier. `nsenter` keeps the mounts of the caller, which `ip netns
/// exec` would not: bpffs and cgroups stay visible.
pub fn command(netns: Option<&str>, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    let _: &mut Command = command.args(["--pdeathsig", "KILL", "--"]);
    if let Some(netns) = netns {
        let _: &mut Command = command
            .arg("nsenter")
            .arg(format!("--net=/run/netns/{netns}"))
            .arg("--");
    }
    let _: &mut Command = command.arg(program);
    command
}

/// A running server; dropping it kills it and waits until it is gone.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; what it prints goes to the end of the file `log`.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("log {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| {
                let program = command.get_program().display();
                format!("{name}: `{program}` could not be started\nremedy: cargo xtask setup")
            })?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails with the end of the log when the process has ended.
    pub fn ensure_running(&mut self) -> Result<()> {
        match self
            .child
            .try_wait()
            .with_context(|| format!("process {}", self.name))?
        {
            None => Ok(()),
            Some(status) => {
                bail!(
                    "{} ended with {status}; its log ends so:\n{}",
                    self.name,
                    self.log_end()
                )
            }
        }
    }

    /// Returns the last lines of the log.
    pub fn log_end(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let (_, end) = lines.split_at(lines.len().saturating_sub(QUOTED_LINES));
        end.join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Either fails only when the process is gone already, which is what is wanted.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs `command` to its end and returns what it printed; its error output is part of the error.
pub fn output(mut command: Command) -> Result<String> {
    let line = {
        let arguments: Vec<&OsStr> = command.get_args().collect();
        arguments.join(OsStr::new(" ")).display().to_string()
    };
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("`{line}` could not be started"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` ended with {}: {}", output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed no UTF-8"))
}
