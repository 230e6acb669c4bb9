//! A process and all its descendants: their list, their resource use, and their end from outside.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::picture;

/// The time limit for the harness's own clean-up (its janitor) after the end of a test program.
const CLEANUP: Duration = Duration::from_secs(40);
/// The interval at which the end of the clean-up is checked.
const LOOK: Duration = Duration::from_millis(200);
/// The kernel's ticks per second in `/proc` (`USER_HZ`).
const TICKS: f64 = 100.0;

/// The process and its descendants, parents first.
pub(super) fn below(top: u32) -> Vec<u32> {
    let (mut found, mut waiting) = (Vec::new(), vec![top]);
    while let Some(id) = waiting.pop() {
        if !found.contains(&id) {
            found.push(id);
            waiting.extend(children(id));
        }
    }
    found
}

/// The processes that the threads of a process have started.
fn children(id: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    // Each list ends with a space.
    let lists = threads.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
    lists.collect::<String>().split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// The CPU seconds of a process and of its children that were waited for, as long as the process exists, also as a
/// zombie.
pub(super) fn cpu(id: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    // utime, stime, cutime, cstime: fields 14 to 17 of proc_pid_stat(5), and the state is field 3.
    let ticks = fields.skip(11).take(4).filter_map(|field| field.parse::<u32>().ok());
    ticks.map(f64::from).sum::<f64>() / TICKS
}

/// Kills a test program, which leads a process group, and all its descendants. The program itself stays a zombie until
/// it is waited for.
pub(super) fn end(leader: u32) {
    let all = below(leader);
    // A process that has ended needs no signal.
    killpg(pid(leader), Signal::SIGKILL).unwrap_or_default();
    for id in all.into_iter().filter(|id| !is_janitor(*id)) {
        kill(pid(id), Signal::SIGKILL).unwrap_or_default();
    }
}

/// Whether the process is the janitor, which removes leftovers of a test program and must outlive it.
fn is_janitor(id: u32) -> bool {
    let command = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
    command.split('\0').nth(1) == Some("janitor")
}

/// Kills the descendants of a program, but not the program itself.
pub(super) fn end_below(top: u32) {
    for id in below(top).into_iter().filter(|id| *id != top) {
        kill(pid(id), Signal::SIGKILL).unwrap_or_default();
    }
}

/// Waits until no resource with the id of a test program is left, and removes what its janitor has not removed.
///
/// `sweeper` is `lb-test-peer`, the program of the janitor.
pub(super) fn clean_up(owner: u32, sweeper: &Path) -> Result<(), String> {
    let is_clean = || {
        picture::owned(Path::new(picture::DIRECTORIES), owner).is_empty()
            && picture::namespaces(owner).is_empty()
    };
    if within(CLEANUP, is_clean) {
        return Ok(());
    }
    let mut sweep = Command::new(sweeper);
    sweep.args(["janitor", &owner.to_string()]).stdin(Stdio::null());
    if let Ok(mut child) = sweep.spawn()
        && !within(CLEANUP, || matches!(child.try_wait(), Ok(Some(_))))
    {
        drop(child.kill());
        drop(child.wait());
    }
    if is_clean() {
        return Ok(());
    }
    let directories = picture::owned(Path::new(picture::DIRECTORIES), owner);
    Err(format!("left behind: {directories:?}, namespaces {:?}", picture::namespaces(owner)))
}

fn within(longest: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !is_done() {
        if began.elapsed() > longest {
            return false;
        }
        thread::park_timeout(LOOK);
    }
    true
}

const fn pid(id: u32) -> Pid {
    Pid::from_raw(id.cast_signed())
}

#[cfg(test)]
mod tests {
    use std::process;

    use super::*;

    #[test]
    fn own_process_is_above_its_child_and_uses_the_cpu() {
        let mut command = Command::new("cat");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let below = below(process::id());
        assert_eq!(below.first(), Some(&process::id()));
        assert!(below.contains(&child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(cpu(process::id()) >= 0.0);
        assert!(clean_up(process::id(), Path::new("/bin/true")).is_ok());
    }
}
