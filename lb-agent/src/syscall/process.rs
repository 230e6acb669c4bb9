//! The agent's own process: its heap, its limit of files.

use std::io;

/// Lets all threads take memory from one heap: what one gives back another takes, so less of it lies about in
/// holes. Call it before there are threads.
pub fn keep_one_heap() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: takes no pointers, and sets a limit that the allocator reads when it makes another heap.
        let _: i32 = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
}

/// Gives memory that is not used any more back to the kernel, where the allocator would keep it: after lists
/// were read, that is most of what was ever taken.
pub(crate) fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: takes no pointers, and any thread may call it at any time.
        let _: i32 = unsafe { libc::malloc_trim(0) };
    }
}

/// Raises the soft limit of open files to the hard one; gives what it was, and is.
pub(crate) fn raise_open_files() -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit` to where one is.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the kernel reads one `rlimit` from where one is.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((before, limit.rlim_cur))
}
