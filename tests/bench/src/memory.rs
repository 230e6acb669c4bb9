//! The memory of a process, and the kernel memory of the maps that it filled.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_tests::wait::wait_until_ok;

/// The deadline for memory to become stable.
const PATIENCE: Duration = Duration::from_mins(1);
/// Memory that did not change for this long is stable.
const STILL: Duration = Duration::from_secs(3);

/// Anonymous memory of a process in bytes, once it is stable.
pub(super) fn stable(process: u32) -> Result<u64> {
    let mut before = (Instant::now(), 0);
    wait_until_ok(PATIENCE, "the memory is stable", || {
        let now = field(process, "RssAnon:")?;
        if now.abs_diff(before.1) > now / 100 {
            before = (Instant::now(), now);
        }
        ensure!(before.0.elapsed() > STILL, "it was {} bytes", before.1);
        Ok(now)
    })
}

/// The peak resident memory of a process, in bytes.
pub(super) fn highest(process: u32) -> Result<u64> {
    field(process, "VmHWM:")
}

/// The kernel memory of all maps pinned in a directory, in bytes.
pub(super) fn of_maps(pins: &Path) -> Result<u64> {
    Ok(lb_agent::maps::kept(pins)?.iter().map(|map| map.bytes).sum())
}

fn field(process: u32, name: &str) -> Result<u64> {
    let file = format!("/proc/{process}/status");
    let status = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let line = line.with_context(|| format!("{file} has no {name}"))?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1_024)
}
