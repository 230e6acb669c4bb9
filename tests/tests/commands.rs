//! The commands of the README as a person types them: the whole demo, the messages for a user without root, and a
//! closed pipe.

use std::env;
use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::process::workspace_binary;
use lb_tests::topology::{Shape, Topology};
use lb_tests::wait::wait_until;
use nix::fcntl::{FcntlArg, OFlag, fcntl};

const NOBODY: u32 = 65534;
/// The deadline for a command that has no work to do.
const SOON: Duration = Duration::from_secs(30);

fn xtask(words: &[&str]) -> Result<Output> {
    let program = workspace_binary("xtask", "LB_XTASK")?;
    let output = Command::new(&program).args(words).output();
    output.with_context(|| format!("{} {words:?}", program.display()))
}

/// Runs a copy of a program of ours as the user `nobody`, who may not be able to enter the program's own directory.
fn as_nobody(program: &Path, words: &[&str]) -> Result<Output> {
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
    let copy = directory.path().join("program");
    fs::copy(program, &copy)?;
    let mut command = Command::new(&copy);
    let command = command.args(words).current_dir("/").uid(NOBODY).gid(NOBODY);
    command.output().with_context(|| format!("{} as nobody", program.display()))
}

fn said(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Checks what the README promises: both frontends answer in both families over both transports, affinity keeps one pod
/// for one client, and a backend is added and removed.
#[test]
fn demo_shows_services_being_answered_and_cleans_up() -> Result<()> {
    let output = xtask(&["demo"])?;
    let said = said(&output);
    ensure!(output.status.success(), "the demo ended with {}:\n{said}", output.status);
    for asker in ["pod-a3 asks the ClusterIP", "client asks the NodePort"] {
        for family in ["IPv4", "IPv6"] {
            for transport in ["tcp", "udp"] {
                let question = format!("{asker}, {family}, {transport}:\n    pod-a");
                ensure!(said.contains(&question), "no answer to {question:?} in:\n{said}");
            }
        }
    }
    for promise in [
        "Distribution: 300",
        " 300\n",
        "pod-a3 answers",
        "pod-a3 no longer answers",
        "clean up: done",
    ] {
        ensure!(said.contains(promise), "no {promise:?} in:\n{said}");
    }
    let left = fs::read_dir("/run/netns")?.filter_map(Result::ok).map(|entry| entry.file_name());
    let left = left.filter(|name| name.to_string_lossy().starts_with("lb-demo-"));
    assert_eq!(left.count(), 0, "namespaces of the demo stayed behind");
    ensure!(!Path::new("/run/lb-demo").exists(), "the directory of the demo stayed behind");
    Ok(())
}

#[test]
fn commands_that_need_root_say_so() -> Result<()> {
    let program = workspace_binary("xtask", "LB_XTASK")?;
    for command in ["test", "demo"] {
        let output = as_nobody(&program, &[command])?;
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        ensure!(said.contains("need root") || said.contains("needs root"), "{command}: {said}");
        ensure!(said.contains("remedy: sudo"), "{command}: {said}");
    }
    Ok(())
}

/// The test below runs this as a user without root; as root it passes in its own right.
#[test]
fn topology_is_made() -> Result<()> {
    Topology::builder(Shape::Routed).nodes(1).pods(1).build().map(drop)
}

#[test]
fn test_that_needs_root_fails_without_it_and_says_so() -> Result<()> {
    let output = as_nobody(&env::current_exe()?, &["--exact", "topology_is_made"])?;
    let said = said(&output);
    ensure!(!output.status.success(), "the test passed without root: {said}");
    ensure!(said.contains("run the tests as root"), "{said}");
    Ok(())
}

/// `| head` closes the pipe; a command of the agent must not report that as an error.
#[test]
fn command_with_a_closed_output_ends_quietly() -> Result<()> {
    let program = workspace_binary("lb-agent", "LB_AGENT")?;
    let shells = ["bash", "elvish", "fish", "powershell", "zsh"];
    let completions = shells.map(|shell| vec!["completions", shell]);
    let others = [vec!["config", "view"], vec!["run", "--help"], vec!["--version"]];
    for words in completions.iter().chain(&others) {
        let (reader, writer) = std::io::pipe()?;
        drop(reader);
        let output = Command::new(&program).args(words).stdout(writer).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() && said.is_empty(), "{words:?}: {}, {said}", output.status);
    }
    Ok(())
}

/// A container runtime that no longer reads the output must not keep a failed agent from ending, and so from being
/// restarted.
#[test]
fn failed_command_ends_although_its_output_is_full() -> Result<()> {
    let (reader, mut writer) = std::io::pipe()?;
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    while writer.write(&[b'.'; 4_096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty()))?;
    let mut command = Command::new(workspace_binary("lb-agent", "LB_AGENT")?);
    let command = command.args(["status", "--bpf-dir", "/nowhere/bpf"]).stderr(writer);
    let mut child = command.stdout(Stdio::null()).spawn()?;
    let ended = wait_until(SOON, "the command ends", || child.try_wait().ok().flatten());
    drop(reader);
    let ended = ended?;
    ensure!(ended.code() == Some(3), "{ended}");
    Ok(())
}
