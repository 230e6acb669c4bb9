//! The load of the machine: how busy its CPUs are, and the share of other processes, which belong neither to the
//! benchmark nor to the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::process;
use std::time::Instant;

use anyhow::{Context as _, Result};

/// `/proc` counts time in hundredths of a second on every architecture (`USER_HZ`).
const TICK: f64 = 0.01;
/// `PF_KTHREAD` of `flags` in `/proc/PID/stat`: work of the kernel, which is that of the packets.
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Other processes may have this share of the machine.
const OTHERS: f64 = 0.04;
/// The host below may withhold this share.
const STOLEN: f64 = 0.02;

/// With fewer calm rounds than this, all count, and the figures say so.
const ENOUGH: usize = 5;

/// Whether so many calm rounds of all are enough for figures of their own.
pub(super) const fn are_enough(calm: usize, all: usize) -> bool {
    calm >= if all < ENOUGH { all } else { ENOUGH }
}

/// Whether a disturbed round is followed by another one in its place: as long as that is not the rule.
pub(super) const fn is_repeated(disturbed: usize, all: usize) -> bool {
    disturbed * 2 <= all
}

/// Seconds that all CPUs together were not idle, since the machine began.
pub(super) fn busy() -> Result<f64> {
    let columns = columns()?;
    let idle = [3, 4].into_iter().filter_map(|column: usize| columns.get(column)).sum::<u64>();
    let guests = 8;
    let all: u64 = columns.iter().take(guests).sum();
    Ok((all - idle) as f64 * TICK)
}

/// How the machine was used until now.
#[derive(Debug)]
pub(super) struct Usage {
    at: Instant,
    /// Ticks of processes that are neither ours nor the kernel's.
    others: u64,
    stolen: u64,
    cpus: f64,
}

impl Usage {
    /// How it is now.
    pub(super) fn now() -> Result<Self> {
        let mut processes = BTreeMap::new();
        for entry in fs::read_dir("/proc").context("/proc")?.flatten() {
            // Whoever has gone meanwhile is counted by its parent.
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

    /// Whether what was measured since can stand: hardly anybody else had the machine.
    pub(super) fn was_calm(&self, until: &Self) -> bool {
        let ticks = (until.at - self.at).as_secs_f64() / TICK * self.cpus;
        // The CPU time of a process may vanish with it, where its parent does not wait for it.
        let others = until.others.saturating_sub(self.others) as f64;
        let stolen = until.stolen.saturating_sub(self.stolen) as f64;
        // A tick more or less is how it is counted.
        others <= ticks * OTHERS + 1.0 && stolen <= ticks * STOLEN + 1.0
    }
}

/// One line of `/proc/PID/stat` (`proc_pid_stat(5)`).
#[derive(Debug, PartialEq)]
struct Process {
    parent: u32,
    is_kernel: bool,
    /// Its own, and of its children that ended.
    ticks: u64,
}

impl Process {
    fn parse(line: &str) -> Option<(u32, Self)> {
        let id = line.split(' ').next()?.parse().ok()?;
        // The name stands in brackets and may hold anything; after it comes the third field.
        let (_, rest) = line.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let parent = u32::try_from(field(4)?).ok()?;
        let ticks = (14..=17).map(field).sum::<Option<u64>>()?;
        Some((id, Self { parent, is_kernel: field(9)? & KERNEL_THREAD != 0, ticks }))
    }
}

fn descends(processes: &BTreeMap<u32, Process>, mut id: u32, from: u32) -> bool {
    // No family is that deep; a loop would be one of recycled numbers.
    for _ in 0..64 {
        if id == from {
            return true;
        }
        let Some(process) = processes.get(&id) else { return false };
        id = process.parent;
    }
    false
}

/// The columns of all CPUs together: user, nice, system, idle, iowait, irq, softirq, steal, guests.
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
    fn children_of_children_are_ours() {
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
    fn work_of_ours_is_no_disturbance_by_others() {
        let before = Usage { at: Instant::now(), others: 100, stolen: 0, cpus: 2.0 };
        let later = before.at + std::time::Duration::from_secs(1);
        let calm = Usage { at: later, others: 105, stolen: 0, cpus: 2.0 };
        let busy = Usage { at: later, others: 150, stolen: 0, cpus: 2.0 };
        assert!(before.was_calm(&calm) && !before.was_calm(&busy));
    }
}
