//! Other programs: their execution, and for a failure the name of the program and a remedy.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::step::step;

/// Directories of system tools that may be missing in `PATH`.
const SYSTEM_DIRECTORIES: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Runs `command` and shows its output; an error contains the command and the `remedy`.
pub(crate) fn run(command: &mut Command, remedy: &str) -> Result<()> {
    let line = spell(command);
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("`{line}` could not be started\nremedy: {remedy}"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}\nremedy: {remedy}");
    }
    Ok(())
}

/// Runs `command` and returns its output; an error contains its standard error.
pub(crate) fn output(command: &mut Command, remedy: &str) -> Result<String> {
    let line = spell(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("`{line}` could not be started\nremedy: {remedy}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{line}` ended with {}\n{}\nremedy: {remedy}", output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed no valid UTF-8"))
}

/// Returns cargo as a person would start it in the root of the clone: the same cargo as started this process.
///
/// Variables that `cargo run` has set for `xtask` are removed: the build script of ring would treat them as a change,
/// and everything that depends on ring would be rebuilt alternately for calls from here and from a shell.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(crate::workspace::root());
    for (name, _) in env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|of_us| is_named(&name, of_us)) {
            cargo.env_remove(name);
        }
    }
    cargo
}

fn is_named(variable: &OsStr, beginning: &str) -> bool {
    variable.as_encoded_bytes().starts_with(beginning.as_bytes())
}

/// Finds `tool` in `PATH` and in the directories of system tools.
pub(crate) fn find(tool: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_DIRECTORIES.map(PathBuf::from))
        .map(|directory| directory.join(tool))
        .find(|file| file.is_file())
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Fails without root: `why` names the reason, `command` is the text after `cargo xtask`.
pub(crate) fn need_root(why: &str, command: &str) -> Result<()> {
    ensure!(
        is_root(),
        "{why}: it needs root\nremedy: sudo -E env \"PATH=$PATH\" cargo xtask {command}"
    );
    Ok(())
}

/// Builds these targets, given as cargo arguments, in the debug profile. Callers select the whole workspace, or all of
/// it but the benchmarks, because with the features of a single package, dependencies would be built a second time (ADR
/// 0036).
pub(crate) fn build(what: &[&str]) -> Result<()> {
    step("build", "cold 5 min, warm 5 s", || {
        run(cargo().arg("build").args(what), "fix what cargo reports")
    })
}

fn spell(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
