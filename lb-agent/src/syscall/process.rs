//! The agent's own process: its heap, its limit of open files, the priority of its threads.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Makes all threads allocate from one heap: a thread can then reuse what another one freed, which reduces
/// fragmentation. Call it before threads start.
pub fn keep_one_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: takes no pointers, and sets a limit that the allocator reads when it creates another heap.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
        }
    }
}

/// Returns unused memory to the kernel, which the allocator would keep. After the initial lists, that is most of the
/// memory ever used.
pub(crate) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: takes no pointers, and any thread may call it at any time.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}

/// Gives the process its name. After a restart by `/proc/self/exe` it would be `exe`, and `pidof lb-agent` would not
/// find it.
pub fn keep_name() {
    if let Err(error) = nix::sys::prctl::set_name(c"lb-agent") {
        tracing::debug!(%error, "name of the process not set");
    }
}

/// Nice value of all threads: nine times the weight of other processes.
///
/// An interface that is not a new pod's waits for four wake-ups of this process (ADR 0030).
const URGENT: i32 = -10;
/// Nice value of the thread that attaches the programs of new pods, if the kernel grants it no real-time priority.
const MOST_URGENT: i32 = -20;
/// The lowest real-time priority: above every thread of the fair scheduler, below the kernel's own threads.
const REAL_TIME: i32 = 1;

/// Raises the priority of the calling thread and of threads that it starts from now on. Needs `CAP_SYS_NICE`.
pub(crate) fn raise_priority() -> io::Result<()> {
    set_priority(URGENT)
}

/// Lets the calling thread run before every thread of the fair scheduler. A nice value is not enough: it counts only
/// within a cgroup or a session (`sched_autogroup`). Where real-time priority is refused, the nice value remains.
/// Needs `CAP_SYS_NICE`.
pub(crate) fn raise_priority_most() -> io::Result<()> {
    let param = libc::sched_param { sched_priority: REAL_TIME };
    // Threads and processes that this thread starts must not inherit the priority.
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: `param` is a live local variable; 0 means the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const param) } {
        0 => Ok(()),
        _ => set_priority(MOST_URGENT),
    }
}

/// Runs long work at normal priority, then restores that of the calling thread.
pub(crate) fn unhurried<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: takes no pointers; -1 may be an error or a valid nice value, and restoring it is fine in both cases.
    let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let is_lowered = before < 0 && set_priority(0).is_ok();
    let result = work();
    if is_lowered && set_priority(before).is_err() {
        tracing::debug!("thread priority not restored");
    }
    result
}

/// Sets the nice value of the calling thread only: on Linux each thread has its own.
fn set_priority(nice: i32) -> io::Result<()> {
    // SAFETY: takes no pointers.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises the soft limit of open files to the hard limit. Returns the old and the new value.
///
/// # Errors
///
/// If the kernel refuses it.
pub fn raise_open_files() -> io::Result<(u64, u64)> {
    let (before, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok((before, most))
}
