//! What the machine must have, each lack with its remedy.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// Linux that has tcx links.
const KERNEL: (u32, u32) = (6, 6);
const NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const SYS_ADMIN: u32 = 21;
const PERFMON: (u32, &str) = (38, "CAP_PERFMON");
const BPF: (u32, &str) = (39, "CAP_BPF");

/// Something that is missing, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// What is missing.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.remedy)
    }
}

fn lack(what: impl Into<String>, remedy: impl Into<String>) -> Requirement {
    Requirement { what: what.into(), remedy: remedy.into() }
}

/// Everything that is missing here.
pub fn requirements(cgroup: &Path) -> Vec<Requirement> {
    let checks = [kernel(), btf(), cgroup2(cgroup)];
    checks.into_iter().flatten().chain(missing_capabilities()).collect()
}

fn kernel() -> Option<Requirement> {
    let release = nix::sys::utsname::uname().ok()?.release().to_str()?.to_owned();
    let mut numbers = release.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    let version = (numbers.next()?, numbers.next()?);
    (version < KERNEL).then(|| {
        let (major, minor) = KERNEL;
        lack(
            format!("Linux {release} has no tcx links"),
            format!("Linux {major}.{minor} or later is needed"),
        )
    })
}

fn btf() -> Option<Requirement> {
    let path = "/sys/kernel/btf/vmlinux";
    (!Path::new(path).exists()).then(|| {
        lack(
            format!("{path} is not there"),
            "use a kernel with CONFIG_DEBUG_INFO_BTF=y (all large distributions have it), \
             and let /sys be visible here",
        )
    })
}

fn cgroup2(path: &Path) -> Option<Requirement> {
    let is_cgroup2 = statfs(path).is_ok_and(|stat| stat.filesystem_type() == CGROUP2_SUPER_MAGIC);
    (!is_cgroup2).then(|| {
        lack(
            format!("{} is no cgroup v2", path.display()),
            "give its folder with --cgroup, or mount one: mount -t cgroup2 none DIR",
        )
    })
}

fn missing_capabilities() -> Option<Requirement> {
    let held = capabilities()?;
    let has = |bit: u32| held & 1 << bit != 0;
    let is_enough = |bit: u32| has(bit) || (bit != NET_ADMIN.0 && has(SYS_ADMIN));
    let missing: Vec<&str> = [BPF, NET_ADMIN, PERFMON]
        .into_iter()
        .filter(|(bit, _)| !is_enough(*bit))
        .map(|(_, name)| name)
        .collect();
    (!missing.is_empty()).then(|| {
        lack(
            format!("{} not held", missing.join(", ")),
            "run as root, or give the container these capabilities",
        )
    })
}

/// The effective capabilities of this process.
pub fn capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// The first cgroup2 in `/proc/mounts`: not always `/sys/fs/cgroup`.
pub fn find_cgroup2() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    })
}
