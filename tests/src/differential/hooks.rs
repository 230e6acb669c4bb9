//! The socket hooks in the kernel, attached for the sockets of this process.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use aya::Ebpf;
use aya::programs::{CgroupAttachMode, CgroupSockAddr};
use lb_agent::datapath::SOCKET_HOOKS;

use crate::topology::leftovers;

/// A cgroup that this process has entered; dropping it makes the process leave.
#[derive(Debug)]
pub struct Cgroup {
    directory: PathBuf,
    before: PathBuf,
}

impl Cgroup {
    /// Creates a cgroup and moves this process into it.
    pub fn enter() -> Result<Self> {
        let all = leftovers::cgroup2()?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).context("no cgroup v2")?;
        let directory = all.join(format!("lb-calls-{}", std::process::id()));
        fs::create_dir(&directory).with_context(|| format!("cgroup {}", directory.display()))?;
        let cgroup = Self { directory, before: all.join(own) };
        move_to(&cgroup.directory)?;
        Ok(cgroup)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        drop(move_to(&self.before));
        drop(fs::remove_dir(&self.directory));
    }
}

fn move_to(cgroup: &Path) -> Result<()> {
    let file = cgroup.join("cgroup.procs");
    fs::write(&file, "0").with_context(|| format!("cgroup {}", file.display()))
}

/// Attaches every socket program to a cgroup, until the object is dropped.
pub fn attach(ebpf: &mut Ebpf, cgroup: &Path) -> Result<()> {
    let directory = fs::File::open(cgroup)?;
    for name in SOCKET_HOOKS {
        let program = ebpf.program_mut(name).with_context(|| format!("program {name}"))?;
        let program: &mut CgroupSockAddr = program.try_into()?;
        program.load().with_context(|| format!("load {name}"))?;
        program
            .attach(&directory, CgroupAttachMode::Single)
            .with_context(|| format!("attach {name}"))?;
    }
    Ok(())
}
