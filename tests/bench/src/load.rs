//! The load of the machine: how busy its CPUs are, and the share of other processes, which belong neither to the
//! benchmark nor to the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::process;
use std::time::Instant;

use anyhow::{Context as _, Result};

/// `/proc` counts time in hundredths of a second on every architecture (`USER_HZ`).
const TICK: f64 = 0.01;
/// `PF_KTHREAD` in `flags` of `/proc/PID/stat`. Kernel threads count as part of the measurement, because they process
/// its packets.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// The share of the CPU time that other processes may use in a calm round.
const OTHERS: f64 = 0.04;
/// The share of the CPU time that the hypervisor may withhold (steal) in a calm round.
const STOLEN: f64 = 0.02;

/// With fewer calm rounds than this, all rounds count, and the figures say so.
const ENOUGH: usize = 5;

/// Whether `calm` of `all` rounds are enough to leave out the others.
pub(super) const fn are_enough(calm: usize, all: usize) -> bool {
    calm >= if all < ENOUGH { all } else { ENOUGH }
}

/// Whether a disturbed round is repeated: as long as disturbed rounds are not the majority.
pub(super) const fn is_repeated(disturbed: usize, all: usize) -> bool {
    disturbed * 2 <= all
}

/// Seconds of non-idle time of all CPUs together, since boot.
pub(super) fn busy() -> Result<f64> {
    let columns = columns()?;
    let idle = [3, 4].into_iter().filter_map(|column: usize| columns.get(column)).sum::<u64>();
    let guests = 8;
    let all: u64 = columns.iter().take(guests).sum();
    Ok((all - idle) as f64 * TICK)
}

/// The use of the machine's CPUs up to one moment.
#[derive(Debug)]
pub(super) struct Usage {
    at: Instant,
    /// CPU ticks of processes that belong neither to the benchmark nor to the kernel.
    others: u64,
    stolen: u64,
    cpus: f64,
}

impl Usage {
    /// Reads the use up to now.
    pub(super) fn now() -> Result<Self> {
        let mut processes = BTreeMap::new();
        for entry in fs::read_dir("/proc").context("/proc")?.flatten() {
            // A process that has ended meanwhile is counted by its parent.
            let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
            if let Some((id, process)) = Process::parse(&text) {
                processes.insert(id, process);
            }
        }
        let ours = process::id();
        let is_other = |id: u32| !descends(&processes, id, ours);
        let others = processes.iter().filter(|(id, process)| !process.is_kernel && is_other(**id));
        let others = others.map(|(_, process)| process.ticks).sum();
        let stolen = columns()?.get(7).copied().unwrap_or_default();
        let cpus = std::thread::available_parallelism()?.get() as f64;
        Ok(Self { at: Instant::now(), others, stolen, cpus })
    }

    /// Whether a measurement since then counts: other processes and the hypervisor took hardly any CPU time.
    pub(super) fn was_calm(&self, until: &Self) -> bool {
        let ticks = (until.at - self.at).as_secs_f64() / TICK * self.cpus;
        // The CPU time of a process is lost when it ends and its parent does not wait for it, so the sum may fall.
        let others = until.others.saturating_sub(self.others) as f64;
        let stolen = until.stolen.saturating_sub(self.stolen) as f64;
        // One tick of difference is within the error of the counter.
        others <= ticks * OTHERS + 1.0 && stolen <= ticks * STOLEN + 1.0
    }
}

/// One line of `/proc/PID/stat` (`proc_pid_stat(5)`).
#[derive(Debug, PartialEq)]
struct Process {
    parent: u32,
    is_kernel: bool,
    /// CPU ticks of the process and of its children that ended and were waited for.
    ticks: u64,
}

impl Process {
    fn parse(line: &str) -> Option<(u32, Self)> {
        let id = line.split(' ').next()?.parse().ok()?;
        // The name is in parentheses and may contain any character; field 3 follows it.
        let (_, rest) = line.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let parent = u32::try_from(field(4)?).ok()?;
        let ticks = (14..=17).map(field).sum::<Option<u64>>()?;
        Some((id, Self { parent, is_kernel: field(9)? & KERNEL_THREAD != 0, ticks }))
    }
}

fn descends(processes: &BTreeMap<u32, Process>, mut id: u32, from: u32) -> bool {
    // The depth is bounded: reused process ids could form a loop.
    for _ in 0..64 {
        if id == from {
            return true;
        }
        let Some(process) = processes.get(&id) else { return false };
        id = process.parent;
    }
    false
}

/// The columns of `/proc/stat` for all CPUs together: user, nice, system, idle, iowait, irq, softirq, steal, guests.
fn columns() -> Result<Vec<u64>> {
    let text = fs::read_to_string("/proc/stat").context("read /proc/stat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("cpu ")).context("/proc/stat")?;
    line.split_whitespace().map(|word| word.parse().context("/proc/stat")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let line = "7 (a) b) S 3 7 7 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0";
        let process = Process { parent: 3, is_kernel: false, ticks: 100 };
        assert_eq!(Process::parse(line), Some((7, process)));
    }

    #[test]
    fn children_of_children_are_descendants() {
        let process = |parent| Process { parent, is_kernel: false, ticks: 0 };
        let processes: BTreeMap<u32, Process> =
            [(10, process(1)), (11, process(10)), (12, process(11)), (13, process(1))].into();
        assert!(descends(&processes, 12, 10) && !descends(&processes, 13, 10));
    }

    #[test]
    fn five_calm_rounds_are_enough_or_all_of_fewer() {
        assert!(are_enough(5, 9) && !are_enough(4, 9));
        assert!(are_enough(3, 3) && !are_enough(2, 3));
        assert!(is_repeated(1, 2) && !is_repeated(1, 1));
    }

    #[test]
    fn own_work_is_no_disturbance() {
        let before = Usage { at: Instant::now(), others: 100, stolen: 0, cpus: 2.0 };
        let later = before.at + std::time::Duration::from_secs(1);
        let calm = Usage { at: later, others: 105, stolen: 0, cpus: 2.0 };
        let busy = Usage { at: later, others: 150, stolen: 0, cpus: 2.0 };
        assert!(before.was_calm(&calm) && !before.was_calm(&busy));
    }
}
