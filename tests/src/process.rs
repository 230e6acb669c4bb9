//! Child processes of a host: in its network namespace and its cgroup, with all mounts of this process.
//!
//! `ip netns exec` would mount a fresh `/sys` and hide bpffs and cgroups; here the child moves itself into the
//! namespace before it executes the program. The kernel kills it when the *thread* that started it ends. One thread
//! starts all of them (`starter`) and runs as long as the test process, so no process outlives the tests of its file.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::iter;
use std::os::unix::process::CommandExt as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

mod starter;

pub(crate) use starter::start;

use crate::control_plane::SERVICE_ACCOUNT;
use crate::netns::run_in;
use crate::wait::wait_until;

/// The deadline for the end of a process after SIGTERM.
const FAREWELL: Duration = Duration::from_secs(30);
/// The deadline for a command that ends by itself.
const LONGEST: Duration = Duration::from_mins(5);

/// The namespaces and cgroup of a host's processes.
#[derive(Debug, Clone)]
pub struct Home {
    netns: Arc<File>,
    cgroup: Option<PathBuf>,
    outlives_us: bool,
    service_account: Option<PathBuf>,
}

impl Home {
    /// A home in a network namespace, and in a cgroup if the host has one.
    pub(crate) const fn new(netns: Arc<File>, cgroup: Option<PathBuf>, outlives_us: bool) -> Self {
        Self { netns, cgroup, outlives_us, service_account: None }
    }

    /// The same home, with a directory mounted where pods have their service account.
    #[must_use]
    pub(crate) fn with_service_account(mut self, directory: &Path) -> Self {
        self.service_account = Some(directory.to_owned());
        self
    }

    /// Runs `work` in the network namespace, on a thread of its own.
    pub fn run_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        run_in(&self.netns, work)
    }

    /// Returns a command that runs `program` in this home.
    pub fn command(&self, program: &Path) -> Result<Command> {
        let mut command = Command::new(program);
        let netns = Arc::clone(&self.netns);
        let (outlives_us, service_account) = (self.outlives_us, self.service_account.clone());
        let mut cgroup = self.cgroup.as_deref().map(members_of).transpose()?;
        let move_in = move || {
            if !outlives_us {
                set_pdeathsig(Signal::SIGKILL)?;
            }
            if let Some(members) = cgroup.as_mut() {
                members.write_all(b"0")?;
            }
            setns(&*netns, CloneFlags::CLONE_NEWNET)?;
            service_account.as_deref().map_or(Ok(()), mount_service_account)
        };
        // SAFETY: between fork and exec the closure only makes system calls; it neither allocates nor locks.
        unsafe {
            command.pre_exec(move_in);
        }
        Ok(command)
    }
}

/// Gives this process its own mount namespace, which still receives the machine's mounts, and adds one mount.
fn mount_service_account(directory: &Path) -> io::Result<()> {
    let follow = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, follow, None::<&str>)?;
    mount(Some(directory), SERVICE_ACCOUNT, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    Ok(())
}

/// Opens the file to which a process writes its id to become a member of the cgroup.
fn members_of(cgroup: &Path) -> Result<File> {
    let file = cgroup.join("cgroup.procs");
    File::options().write(true).open(&file).with_context(|| format!("cgroup {}", cgroup.display()))
}

/// A running program whose output goes to a file; dropping it kills it and waits for its end.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts `command`; its output is appended to the file `log`.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("log {}", log.display()))?;
        let program = PathBuf::from(command.get_program());
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = start(command).with_context(|| format!("{name}: {}", program.display()))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Fails, with the end of the log, if the process has ended.
    pub fn ensure_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}:\n{}", self.name, self.log_end(20)),
        }
    }

    /// Kills the process with SIGKILL.
    pub fn kill9(&mut self) -> Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal)
            .with_context(|| format!("{signal} to {}", self.name))
    }

    /// Sends SIGTERM and waits for the end of the process.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        // After a process has been waited for, its id may belong to another process.
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        self.signal(Signal::SIGTERM)?;
        let child = &mut self.child;
        wait_until(FAREWELL, &format!("{} ends after SIGTERM", self.name), || {
            child.try_wait().ok().flatten()
        })
    }

    /// Waits until the process has ended by itself.
    pub fn wait_end(&mut self) -> Result<ExitStatus> {
        let child = &mut self.child;
        wait_until(FAREWELL, &format!("{} ends", self.name), || child.try_wait().ok().flatten())
    }

    /// Returns the last lines of its output.
    pub fn log_end(&self, lines: usize) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let all: Vec<&str> = log.lines().collect();
        let (_, end) = all.split_at(all.len().saturating_sub(lines));
        end.join("\n")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Either call fails only if the process has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Finds a binary of this workspace beside the running test, or at the path in the environment variable `variable`.
pub fn workspace_binary(name: &str, variable: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let test = std::env::current_exe()?;
    let found = test.ancestors().skip(1).take(2).map(|directory| directory.join(name));
    found.into_iter().find(|file| file.is_file()).with_context(|| {
        format!("binary {name} is not beside {}\nremedy: cargo build --workspace", test.display())
    })
}

/// Fails with a clear message without root: namespaces, mounts and BPF need it, and would fail with obscure errors.
pub(crate) fn ensure_root() -> Result<()> {
    ensure!(
        geteuid().is_root(),
        "this test makes network namespaces and loads eBPF programs: only root can\n\
         remedy: run the tests as root (`cargo xtask check` runs those that need none)"
    );
    Ok(())
}

/// Runs a tool to its end, whatever its exit code. A tool that takes longer than `LONGEST` is killed, which is an
/// error. `input` is its standard input.
pub(crate) fn output(command: &mut Command, input: &str) -> Result<Output> {
    ended_within(LONGEST, command, input)
}

fn ended_within(longest: Duration, command: &mut Command, input: &str) -> Result<Output> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| spelled(command))?;
    let id = Pid::from_raw(child.id().cast_signed());
    let (is_over, over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        // Until it is waited for below, the child is a zombie at least, so its process id is not reused.
        let watching = scope.spawn(move || {
            let is_late = over.recv_timeout(longest) == Err(RecvTimeoutError::Timeout);
            is_late && kill(id, Signal::SIGKILL).is_ok()
        });
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        drop(is_over);
        let was_killed = watching.join().unwrap_or_else(|panic| resume_unwind(panic));
        if was_killed {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{} did not end within {longest:?}:\n{said}", spelled(command));
        }
        Ok(output)
    })
}

/// Runs a tool to its end and returns its standard output; the error of a failure contains its whole output. `input` is
/// its standard input.
pub fn run(command: &mut Command, input: &str) -> Result<String> {
    let output = output(command, input)?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let (line, status) = (spelled(command), output.status);
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{line} ended with {status}: {}\n{said}{input}", complaint.trim());
    }
    Ok(said.into_owned())
}

/// The program and its arguments as one line, for a message.
fn spelled(command: &Command) -> String {
    let arguments = command.get_args().map(|argument| argument.to_string_lossy());
    let words: Vec<_> =
        iter::once(command.get_program().to_string_lossy()).chain(arguments).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_that_does_not_end_is_an_error_that_has_its_words() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo here >&2; exec cat /dev/zero > /dev/null"]);
        let error = ended_within(Duration::from_secs(1), &mut command, "").unwrap_err().to_string();
        assert!(error.starts_with("sh -c echo here") && error.ends_with(":\nhere\n"), "{error}");
    }

    #[test]
    fn input_is_read_and_output_returned() {
        assert_eq!(run(&mut Command::new("cat"), "some words").unwrap(), "some words");
        assert!(run(&mut Command::new("false"), "").is_err());
    }
}
