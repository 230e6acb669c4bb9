//! One thread starts all processes of the harness and runs until the test process ends.
//!
//! The kernel kills a process of the harness when the *thread* that started it ends. Each test has a thread of its own,
//! and the processes of a cluster that several tests of a file use must survive the first test.

use std::io;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::thread;

/// A command, and the channel to which the started process is sent.
type Order = (Command, SyncSender<io::Result<Child>>);

static STARTER: LazyLock<Sender<Order>> = LazyLock::new(|| {
    let (orders, taken) = channel::<Order>();
    drop(thread::spawn(move || {
        for (mut command, started) in taken {
            drop(started.send(command.spawn()));
        }
    }));
    orders
});

/// Starts a process that the kernel kills when the test process ends.
///
/// # Errors
///
/// As [`Command::spawn`].
pub(crate) fn start(command: Command) -> io::Result<Child> {
    let (sender, started) = sync_channel(1);
    STARTER.send((command, sender)).map_err(io::Error::other)?;
    started.recv().map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    use std::thread;

    use nix::sys::prctl::set_pdeathsig;
    use nix::sys::signal::Signal;

    use super::start;

    #[test]
    fn process_outlives_the_thread_that_ordered_it() {
        let asked = thread::spawn(|| {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped());
            // SAFETY: the closure only makes a system call between fork and exec.
            unsafe {
                command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?));
            }
            start(command).unwrap()
        });
        let mut child = asked.join().unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}
