//! The machine that figures come from, and its load before and after the measurement.

use std::fs;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// The machine that a measurement ran on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) kernel: String,
    pub(super) processor: String,
    pub(super) cpus: usize,
    /// The CPU that programs were pinned to, if they were.
    pub(super) cpu: Option<usize>,
    /// The machine's memory, in MB.
    pub(super) megabytes: u64,
    /// The load average of the last minute (`/proc/loadavg`), before and after the measurement.
    pub(super) load: [f64; 2],
}

impl Machine {
    /// Reads this machine's properties, before a measurement.
    pub(super) fn here(cpu: Option<usize>) -> Result<Self> {
        let kernel = read("/proc/sys/kernel/osrelease")?.trim().to_owned();
        let text = read("/proc/cpuinfo")?;
        let model = text.lines().find_map(|line| line.strip_prefix("model name"));
        let model = model.and_then(|rest| rest.split(": ").nth(1)).unwrap_or("unknown");
        let cpus = text.lines().filter(|line| line.starts_with("processor")).count();
        let memory = read("/proc/meminfo")?;
        let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kilobytes = total.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok());
        let (load, megabytes) = (load()?, kilobytes.unwrap_or(0_u64) / 1_024);
        let processor = model.to_owned();
        Ok(Self { kernel, processor, cpus, cpu, megabytes, load: [load, load] })
    }

    /// Adds the load after the measurement.
    pub(super) fn afterwards(self) -> Result<Self> {
        let [before, _] = self.load;
        Ok(Self { load: [before, load()?], ..self })
    }

    /// Machine and load as one line of text.
    pub(super) fn words(&self) -> String {
        let Self { kernel, processor, cpus, megabytes, load: [before, after], .. } = self;
        format!(
            "{processor}, {cpus} CPUs, {megabytes} MB, Linux {kernel}, load {before} to {after}"
        )
    }
}

/// The load average of the last minute.
fn load() -> Result<f64> {
    let text = read("/proc/loadavg")?;
    let first = text.split(' ').next().context("/proc/loadavg is empty")?;
    first.parse().context("/proc/loadavg")
}

fn read(file: &str) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("read {file}"))
}
