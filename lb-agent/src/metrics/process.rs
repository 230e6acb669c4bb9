//! `process_*`: the five values on dashboards of Kubernetes components, from `/proc/self`.

use std::fmt;
use std::fs;

use nix::unistd::{SysconfVar, sysconf};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

#[derive(Debug)]
pub(super) struct Process;

/// Indices of fields of `/proc/self/stat` (`proc_pid_stat(5)`), counted from the state, its third field.
mod field {
    pub(super) const USER_TICKS: usize = 11;
    pub(super) const SYSTEM_TICKS: usize = 12;
    pub(super) const START_TICKS: usize = 19;
    pub(super) const VIRTUAL_BYTES: usize = 20;
    pub(super) const RESIDENT_PAGES: usize = 21;
}

/// The content of `/proc/self/stat`.
struct Stat(String);

impl Stat {
    fn read() -> Self {
        Self(fs::read_to_string("/proc/self/stat").unwrap_or_default())
    }

    fn number(&self, at: usize) -> u64 {
        // The process name in parentheses may contain spaces: the fields are counted after it.
        let fields = self.0.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(at).and_then(|it| it.parse().ok()).unwrap_or(0)
    }

    fn start_time(&self) -> f64 {
        boot_time() + self.number(field::START_TICKS) as f64 / system(SysconfVar::CLK_TCK) as f64
    }
}

fn system(variable: SysconfVar) -> u64 {
    sysconf(variable).ok().flatten().map_or(1, |value| value.max(1).cast_unsigned())
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stat = Stat::read();
        let ticks = system(SysconfVar::CLK_TCK) as f64;
        // The kernel counts CPU time in ticks and memory in pages.
        let cpu = stat.number(field::USER_TICKS) + stat.number(field::SYSTEM_TICKS);
        let resident = stat.number(field::RESIDENT_PAGES) * system(SysconfVar::PAGE_SIZE);
        let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);

        let to = &mut encoder;
        let counter = ConstCounter::new(cpu as f64 / ticks);
        let name = "process_cpu_seconds";
        counter.encode(to.encode_descriptor(
            name,
            "CPU time in seconds",
            None,
            MetricType::Counter,
        )?)?;
        gauge(to, "process_resident_memory_bytes", "Resident memory in bytes", resident as f64)?;
        let virtual_bytes = stat.number(field::VIRTUAL_BYTES) as f64;
        gauge(to, "process_virtual_memory_bytes", "Virtual memory in bytes", virtual_bytes)?;
        gauge(to, "process_open_fds", "Open file descriptors", open as f64)?;
        started(to)
    }
}

/// The collector of the start time alone, for `/metrics/slis`.
#[derive(Debug)]
pub(super) struct StartTime;

impl Collector for StartTime {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        started(&mut encoder)
    }
}

/// Returns the start time of this process, in seconds since 1970.
pub(super) fn start_time() -> f64 {
    Stat::read().start_time()
}

fn started(to: &mut DescriptorEncoder<'_>) -> fmt::Result {
    gauge(to, "process_start_time_seconds", "Unix time of the start of the process", start_time())
}

fn gauge(to: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    ConstGauge::new(value).encode(to.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// Returns the boot time of the machine, in seconds since 1970.
fn boot_time() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|text| text.trim().parse().ok()).unwrap_or(0.0)
}
