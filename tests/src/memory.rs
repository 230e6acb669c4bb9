//! A cgroup with a memory limit, of cgroup v1 or v2.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The mount points of the memory controller of cgroup v1, and of cgroup v2.
const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

/// A cgroup that limits the memory of its processes, including the maps that they create. Dropping it removes it; its
/// processes must have ended before.
#[derive(Debug)]
pub struct MemoryLimit {
    directory: PathBuf,
    is_v1: bool,
}

impl MemoryLimit {
    /// Makes a cgroup with a limit in bytes. `name` is part of its directory's name.
    pub fn new(name: &str, bytes: u64) -> Result<Self> {
        let is_v1 = Path::new(V1).join("memory.limit_in_bytes").exists();
        let root = Path::new(if is_v1 { V1 } else { V2 });
        if !is_v1 {
            write(&root.join("cgroup.subtree_control"), "+memory")?;
        }
        let directory = root.join(format!("lb-test-{}-{name}", std::process::id()));
        fs::create_dir(&directory).with_context(|| directory.display().to_string())?;
        let limit = Self { directory, is_v1 };
        let file = if is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
        write(&limit.directory.join(file), &bytes.to_string())?;
        Ok(limit)
    }

    /// The file that takes the process ids of members.
    pub fn members(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// The number of processes that the kernel has killed because of the limit.
    pub fn killed(&self) -> Result<u64> {
        let file = if self.is_v1 { "memory.oom_control" } else { "memory.events" };
        let text = fs::read_to_string(self.directory.join(file))?;
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(count.context("a line oom_kill")?.trim().parse()?)
    }

    /// The peak of the charged memory, in bytes.
    pub fn peak(&self) -> Result<u64> {
        let file = if self.is_v1 { "memory.max_usage_in_bytes" } else { "memory.peak" };
        Ok(fs::read_to_string(self.directory.join(file))?.trim().parse()?)
    }

    /// The charged memory now, in bytes.
    pub fn taken(&self) -> Result<u64> {
        let file = if self.is_v1 { "memory.usage_in_bytes" } else { "memory.current" };
        Ok(fs::read_to_string(self.directory.join(file))?.trim().parse()?)
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        drop(fs::remove_dir(&self.directory));
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("{text} to {}", file.display()))
}
