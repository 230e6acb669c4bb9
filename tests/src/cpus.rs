//! CPU affinity and nice values of threads, and threads that keep the CPUs busy.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Two of the CPUs that this thread may use; the same one twice if there is only one.
pub fn two() -> Result<[usize; 2]> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let mut all = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let first = all.next().context("a CPU")?;
    Ok([first, all.next().unwrap_or(first)])
}

/// Pins this thread to a CPU.
pub fn stay_on(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &only).with_context(|| format!("stay on CPU {cpu}"))
}

/// Sets the nice value of the calling thread, and of the threads that it starts from now on.
pub fn nice(value: i32) -> Result<()> {
    // SAFETY: takes no pointers.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) };
    ensure!(result == 0, "nice value {value}: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Runs `work` while this number of threads of nice value 0 compute.
pub fn while_busy<T>(threads: usize, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // The caller may have another nice value, which its threads inherit. Raising it is always allowed.
                let _done: Result<()> = nice(0);
                while !is_over.load(Ordering::Relaxed) {
                    black_box((0..10_000_u64).sum::<u64>());
                }
            });
        }
        let result = work();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}
