//! The resources of a topology besides memory, and their removal.
//!
//! Every resource has the process id of its owner in its name. It is removed with its value. If the owner is killed or
//! interrupted, a janitor (a process that only waits for the owner's end) removes it. If both die, the next topology
//! removes the resources of dead processes.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lb_agent::state_file::state_file;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::setsid;

use crate::control_plane::{CLAIM, SERVICE_ACCOUNT};
use crate::netns::NAMES;
use crate::process::{ensure_root, run, workspace_binary};
use crate::wait::wait_until_ok;

const NETNS: &str = "lbt-";
const CGROUP: &str = "lb-test-";
/// The parent of all directories of tests, which have the process id of their owner in their names.
pub(crate) const DIRECTORY: &str = "/run/lb-test";
/// The deadline for the end of killed processes of a cgroup.
const KILL: Duration = Duration::from_secs(30);

/// The names, the directory and the cgroup of one topology.
#[derive(Debug)]
pub(crate) struct Namespaces {
    netns_prefix: String,
    directory: PathBuf,
    cgroup: PathBuf,
    pub(crate) kept: bool,
}

impl Namespaces {
    /// One of several that this process may have.
    pub(crate) fn numbered(number: u32) -> Result<Self> {
        static JANITOR: OnceLock<Option<Child>> = OnceLock::new();
        JANITOR.get_or_init(|| {
            sweep(is_dead);
            start_janitor().ok()
        });
        let owner = format!("{}-{number}", process::id());
        Self::new(
            format!("{NETNS}{owner}-"),
            Path::new(DIRECTORY).join(&owner),
            &format!("{CGROUP}{owner}"),
        )
    }

    /// One with a name for people; it stays when the value is dropped.
    pub(crate) fn named(name: &str) -> Result<Self> {
        remove_named(name)?;
        let mut namespaces = Self::new(format!("{name}-"), Path::new("/run").join(name), name)?;
        namespaces.kept = true;
        Ok(namespaces)
    }

    fn new(netns_prefix: String, directory: PathBuf, cgroup: &str) -> Result<Self> {
        ensure_root()?;
        let cgroup = cgroup2()?.join(cgroup);
        for path in [&directory, &cgroup] {
            fs::create_dir_all(path).with_context(|| format!("directory {}", path.display()))?;
        }
        Ok(Self { netns_prefix, directory, cgroup, kept: false })
    }

    /// Returns the full name of a network namespace.
    pub(crate) fn netns(&self, label: &str) -> String {
        format!("{}{label}", self.netns_prefix)
    }

    /// Creates and returns a directory.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf> {
        made(self.directory.join(name))
    }

    /// Creates and returns a cgroup.
    pub(crate) fn cgroup(&self, name: &str) -> Result<PathBuf> {
        made(self.cgroup.join(name))
    }

    /// Mounts a bpf filesystem outside `/sys`, and returns its mount point.
    pub(crate) fn bpffs(&self, name: &str) -> Result<PathBuf> {
        let directory = self.directory(name)?.join("bpf");
        let directory = made(directory)?;
        mount(Some("bpf"), &directory, Some("bpf"), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("bpf filesystem at {}", directory.display()))?;
        Ok(directory)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        if !self.kept {
            remove_cgroup(&self.cgroup);
            remove_directory(&self.directory);
        }
    }
}

fn made(path: PathBuf) -> Result<PathBuf> {
    fs::create_dir_all(&path).with_context(|| format!("directory {}", path.display()))?;
    Ok(path)
}

/// Finds the mount point of the machine's cgroup v2 hierarchy.
pub fn cgroup2() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut cgroup2 = fields.filter(|fields| fields.get(2) == Some(&"cgroup2"));
    let found = cgroup2.next().and_then(|fields| fields.get(1).map(PathBuf::from));
    found.context("no cgroup v2 is mounted\nremedy: mount -t cgroup2 none /sys/fs/cgroup/unified")
}

/// Removes the leftovers of a topology with a name of its own.
pub fn remove_named(name: &str) -> Result<()> {
    remove_cgroup(&cgroup2()?.join(name));
    remove_namespaces(|netns| netns.starts_with(&format!("{name}-")));
    remove_directory(&Path::new("/run").join(name));
    Ok(())
}

/// Removes the resources of the process `owner`, once it has ended.
pub fn sweep_after(owner: u32) {
    // The owner holds the other end of the pipe and never writes: the read returns when the owner has ended.
    drop(io::stdin().read(&mut [0]));
    sweep(|pid| pid == owner);
}

fn start_janitor() -> Result<Child> {
    let mut command = Command::new(workspace_binary("lb-test-peer", "LB_TEST_PEER")?);
    command.args(["janitor", &process::id().to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: setsid is a system call and nothing else. In a session of its own, the janitor gets no interrupt from the
    // terminal.
    unsafe {
        command.pre_exec(|| setsid().map(drop).map_err(Into::into));
    }
    Ok(command.spawn()?)
}

/// Removes the state files of agents whose pins were below a directory.
fn remove_states(directory: &Path) {
    let Some(state) = state_file(directory).parent().map(Path::to_owned) else { return };
    let (Some(states), Some(name)) = (state.parent(), state.file_name()) else { return };
    let prefix = format!("{}-", name.to_string_lossy());
    for name in names_in(states).filter(|name| name.starts_with(&prefix)) {
        drop(fs::remove_dir_all(states.join(name)));
    }
}

fn is_dead(pid: u32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}

fn sweep(whose: impl Fn(u32) -> bool) {
    let owned = |name: &str, prefix: &str| {
        let owner = name.strip_prefix(prefix).and_then(|rest| rest.split('-').next());
        owner.and_then(|pid| pid.parse().ok()).is_some_and(&whose)
    };
    if let Ok(cgroups) = cgroup2() {
        for name in names_in(&cgroups).filter(|name| owned(name, CGROUP)) {
            remove_cgroup(&cgroups.join(name));
        }
    }
    remove_namespaces(|name| owned(name, NETNS));
    for name in names_in(Path::new(SERVICE_ACCOUNT)).filter(|name| owned(name, CLAIM)) {
        drop(fs::remove_file(Path::new(SERVICE_ACCOUNT).join(name)));
    }
    for name in names_in(Path::new(DIRECTORY)).filter(|name| owned(name, "")) {
        remove_directory(&Path::new(DIRECTORY).join(name));
    }
}

fn names_in(directory: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

fn remove_namespaces(whose: impl Fn(&str) -> bool) {
    for name in names_in(Path::new(NAMES)).filter(|name| whose(name)) {
        drop(run(Command::new("ip").args(["netns", "delete", &name]), ""));
    }
}

/// Removes a cgroup with all cgroups below it, after killing every process in them.
fn remove_cgroup(cgroup: &Path) {
    if !cgroup.exists() {
        return;
    }
    drop(fs::write(cgroup.join("cgroup.kill"), "1"));
    let inner: Vec<String> = names_in(cgroup).filter(|name| cgroup.join(name).is_dir()).collect();
    for name in inner {
        remove_cgroup(&cgroup.join(name));
    }
    drop(wait_until_ok(KILL, "empty cgroup", || match fs::remove_dir(cgroup) {
        // A janitor and a new topology may remove the same cgroup.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => Ok(removed?),
    }));
}

/// Removes a directory and every mount in it.
fn remove_directory(directory: &Path) {
    remove_states(directory);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    let ours: Vec<&Path> = points.filter(|point| point.starts_with(directory)).collect();
    // Later mounts may be on top of earlier ones.
    for point in ours.into_iter().rev() {
        drop(umount2(point, MntFlags::MNT_DETACH).map_err(anyhow::Error::from));
    }
    drop(fs::remove_dir_all(directory));
}
