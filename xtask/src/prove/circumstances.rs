//! The circumstances of a figure: commit, machine and date.

use std::fs;
use std::process::Command;
use std::thread;

use anyhow::{Context as _, Result};

use crate::{shell, workspace};

/// The circumstances of a run, the same for all its campaigns.
pub(super) struct Circumstances {
    /// The short hash, with `+` if a file differs from the commit.
    pub(super) commit: String,
    /// CPU model, number of CPUs and kernel, as text.
    pub(super) machine: String,
    pub(super) date: String,
}

impl Circumstances {
    /// Reads the current circumstances.
    pub(super) fn here() -> Result<Self> {
        let read = |file: &str| fs::read_to_string(file).with_context(|| format!("read {file}"));
        let cpus = thread::available_parallelism().context("number of CPUs")?.get();
        let cpuinfo = read("/proc/cpuinfo")?;
        let kernel = read("/proc/sys/kernel/osrelease")?;
        let date = shell::output(Command::new("date").arg("+%F"), "apt-get install coreutils")?;
        Ok(Self {
            commit: commit()?,
            machine: format!("{}, {cpus} CPUs, Linux {}", model(&cpuinfo), kernel.trim()),
            date: date.trim().to_owned(),
        })
    }
}

/// The short hash of the commit. Changes of the figures document do not count as a difference, because each campaign
/// changes it.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(arguments).current_dir(workspace::root());
        shell::output(&mut git, "run it in a clone, with git installed")
    };
    let hash = git(&["rev-parse", "--short", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--", ".", ":!docs/proof.md"])?;
    let mark = if changes.is_empty() { "" } else { "+" };
    Ok(format!("{}{mark}", hash.trim()))
}

/// The model name from `/proc/cpuinfo`, which some architectures do not give.
fn model(cpuinfo: &str) -> &str {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(": ")).map_or("unnamed CPU", |(_, model)| model.trim())
}

#[cfg(test)]
mod tests {
    use super::model;

    #[test]
    fn model_of_the_first_cpu_is_named() {
        let text = "processor\t: 0\nmodel name\t: One CPU @ 2.1GHz\n\nmodel name\t: Other\n";
        assert_eq!(model(text), "One CPU @ 2.1GHz");
        assert_eq!(model("processor : 0\nCPU part : 0xd0c\n"), "unnamed CPU");
    }
}
