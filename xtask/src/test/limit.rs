//! A test that does not end is a failure with a picture of its processes, and not a run that stands still.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// Between two looks whether a program has ended.
const LOOK: Duration = Duration::from_millis(200);

/// Waits until the program ends. One that takes longer is killed, after the processes below it were described.
pub(super) fn wait(child: &mut Child, longest: Duration) -> Result<(ExitStatus, Option<String>)> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, None));
        }
        if began.elapsed() >= longest {
            let picture = picture(child.id());
            child.kill()?;
            let late = format!("it did not end within {longest:?}; its processes were:\n{picture}");
            return Ok((child.wait()?, Some(late)));
        }
        thread::park_timeout(LOOK);
    }
}

/// The process and those below it, a line for each of their threads: where in the kernel it waits.
fn picture(top: u32) -> String {
    let mut lines = String::new();
    let mut waiting = vec![top];
    while let Some(id) = waiting.pop() {
        lines.push_str(&described(id).unwrap_or_else(|error| format!("{id}: {error:#}\n")));
        waiting.extend(children(id));
    }
    lines
}

fn described(id: u32) -> Result<String> {
    let directory = Path::new("/proc").join(id.to_string());
    let read =
        |file: &str| fs::read_to_string(directory.join(file)).with_context(|| file.to_owned());
    let mut text = format!("{id}: {}\n", read("cmdline")?.replace('\0', " "));
    for thread in fs::read_dir(directory.join("task")).context("task")? {
        let file = |name: &str| fs::read_to_string(thread.as_ref().ok()?.path().join(name)).ok();
        let [name, place, call] =
            ["comm", "wchan", "syscall"].map(|it| file(it).unwrap_or_default().trim().to_owned());
        writeln!(text, "    {name}: {place}, system call {call}")?;
    }
    Ok(text)
}

/// Those that the threads of a process have started.
fn children(id: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    // Each list ends with a space.
    let lists = threads.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
    lists.collect::<String>().split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn program_that_does_not_end_is_killed_and_its_children_are_named() {
        let mut command = Command::new("sh");
        // It ends with its standard input, which is closed below.
        let mut child = command.args(["-c", "cat; true"]).stdin(Stdio::piped()).spawn().unwrap();
        let (status, late) = wait(&mut child, Duration::from_secs(1)).unwrap();
        let late = late.unwrap();
        assert!(!status.success());
        assert!(late.contains(": cat \n"), "{late}");
    }

    #[test]
    fn program_that_ends_is_not_late() {
        let mut child = Command::new("true").spawn().unwrap();
        let (status, late) = wait(&mut child, Duration::from_hours(1)).unwrap();
        assert!(status.success() && late.is_none());
    }
}
