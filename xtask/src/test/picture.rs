//! A description of a test that does not end: its processes and the places where they wait, the logs of its agents, the
//! counters of its interfaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tree;

/// The number of lines that are kept from each log.
const LOG_LINES: usize = 40;
/// The parent of the directories of topologies, which have the id of their process in their names
/// (`topology/leftovers.rs`).
pub(super) const DIRECTORIES: &str = "/run/lb-test";
/// The directory of the names of network namespaces, and the prefix of those of tests.
pub(super) const NAMESPACES: (&str, &str) = ("/run/netns", "lbt-");

/// Describes the processes below `top`, and all resources with its process id.
pub(super) fn of(top: u32) -> String {
    let mut lines = vec!["processes:".to_owned()];
    let processes: Vec<_> = tree::below(top).into_iter().map(described).collect();
    lines.extend(processes.iter().flat_map(|it| it.lines.clone()));
    let blocked = processes.into_iter().flat_map(|it| it.blocked);
    lines.extend(blocked.map(|thread| format!("blocked in the kernel: {thread}")));
    for log in owned(Path::new(DIRECTORIES), top).iter().flat_map(|directory| logs(directory)) {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let skipped = text.lines().count().saturating_sub(LOG_LINES);
        lines.push(format!("log {}:", log.display()));
        lines.extend(text.lines().skip(skipped).map(str::to_owned));
    }
    for namespace in namespaces(top) {
        let shown = Command::new("ip").args(["-n", &namespace, "-s", "link"]).output();
        let shown = shown.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
        lines.push(format!("interfaces of {namespace}:\n{}", shown.unwrap_or_default()));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The description of a process.
struct Described {
    lines: Vec<String>,
    /// Its threads in uninterruptible sleep.
    blocked: Vec<String>,
}

/// A line for the process and one for each of its threads: state, wait channel, system call, stack.
fn described(id: u32) -> Described {
    let directory = Path::new("/proc").join(id.to_string());
    let command = fs::read_to_string(directory.join("cmdline")).unwrap_or_default();
    let lines = vec![format!("{id}: {}", command.replace('\0', " "))];
    let mut described = Described { lines, blocked: Vec::new() };
    for thread in fs::read_dir(directory.join("task")).into_iter().flatten().flatten() {
        let file = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let [name, place, call, stack] =
            ["comm", "wchan", "syscall", "stack"].map(|it| file(it).trim().to_owned());
        let state = state(&file("stat"));
        let stack = stack.lines().map(str::trim).collect::<Vec<_>>().join(" < ");
        described
            .lines
            .push(format!("    {name}: state {state}, {place}, system call {call}, stack {stack}"));
        if state == 'D' {
            described.blocked.push(format!("thread {name} of process {id}, in {place}"));
        }
    }
    described
}

/// The state letter in a `stat` file of /proc. It follows the name, which may contain any character.
fn state(stat: &str) -> char {
    stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?')
}

/// The directories in `parent` whose names begin with the process id and a hyphen.
pub(super) fn owned(parent: &Path, owner: u32) -> Vec<PathBuf> {
    let prefix = format!("{owner}-");
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|it| it.file_name().to_string_lossy().starts_with(&prefix));
    named.map(|it| it.path()).collect()
}

/// The names of the network namespaces that a test process has created.
pub(super) fn namespaces(owner: u32) -> Vec<String> {
    let (directory, prefix) = NAMESPACES;
    let prefix = format!("{prefix}{owner}-");
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|it| it.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// The files named `*.log` in a directory and its subdirectories. Deeper levels contain other file systems.
fn logs(directory: &Path) -> Vec<PathBuf> {
    let files = |directory: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let all = files(directory);
    let inner: Vec<PathBuf> =
        all.iter().filter(|it| it.is_dir()).flat_map(|it| files(it)).collect();
    let logs = all.into_iter().chain(inner);
    logs.filter(|file| file.extension().is_some_and(|it| it == "log")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_follows_a_name_with_brackets_and_blanks() {
        assert_eq!(state("12 (a) b (c)) D 1 2"), 'D');
        assert_eq!(state(""), '?');
    }

    #[test]
    fn logs_are_found_two_levels_deep() {
        let directory = tempfile::tempdir().unwrap();
        let node = directory.path().join("node-a");
        fs::create_dir(&node).unwrap();
        for file in [directory.path().join("etcd.log"), node.join("agent.log"), node.join("state")]
        {
            fs::write(file, "x").unwrap();
        }
        let mut found = logs(directory.path());
        found.sort();
        assert_eq!(found, [directory.path().join("etcd.log"), node.join("agent.log")]);
    }
}
