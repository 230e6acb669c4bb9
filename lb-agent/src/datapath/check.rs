//! Requirements of the machine, each with its remedy.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use super::Direction;
use super::release::{self, Release};
use crate::syscall;

/// First release of Linux with tcx links.
const KERNEL: Release = (6, 6);
/// The type information of the kernel (`CONFIG_DEBUG_INFO_BTF`).
const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
/// The content of `/proc/self/uid_map` in the initial user namespace.
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];
/// Whether the kernel compiles programs. The file exists only with `CONFIG_BPF_JIT`, and in the initial network
/// namespace.
const JIT: &str = "/proc/sys/net/core/bpf_jit_enable";
/// A word in uname(2)'s version of a kernel with `CONFIG_PREEMPT_RT` (`init/Makefile`); mainline has the option since
/// Linux 6.12.
const REALTIME: &str = "PREEMPT_RT";
/// The offsets of the time namespace of this process.
const OFFSETS: &str = "/proc/self/timens_offsets";
const NET_ADMIN: (u32, &str) = (12, "CAP_NET_ADMIN");
const SYS_ADMIN: u32 = 21;
const PERFMON: (u32, &str) = (38, "CAP_PERFMON");
const BPF: (u32, &str) = (39, "CAP_BPF");

/// A missing requirement, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The missing capability, mount or feature of the kernel.
    pub what: String,
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

/// The facts about the machine that the checks use. Tests make up their own.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one machine")]
struct MachineFacts {
    /// Release and version of the kernel, as uname(2) returns them.
    release: String,
    version: String,
    /// Whether the kernel has tcx links; `None` if it could not be asked.
    has_tcx: Option<bool>,
    has_btf: bool,
    /// Whether programs are interpreted: then the kernel loads none that has functions and tail calls.
    is_jit_off: bool,
    /// Whether `--cgroup` is on a cgroup v2.
    is_cgroup2: bool,
    /// Whether `CLOCK_MONOTONIC` is that of the programs.
    is_of_host_time: bool,
    privileges: Privileges,
}

/// The capabilities that count for bpf(2).
#[derive(Clone, Copy, Debug)]
enum Privileges {
    /// The effective ones, as bits.
    Held(u64),
    /// None, since those of a user namespace do not count.
    OfUserNamespace,
    /// They cannot be read.
    Unknown,
}

impl Privileges {
    fn here() -> Self {
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let ids: Vec<&str> = map.split_whitespace().collect();
        if !ids.is_empty() && ids != ALL_USERS {
            return Self::OfUserNamespace;
        }
        capabilities().map_or(Self::Unknown, Self::Held)
    }

    fn lack(self) -> Option<Requirement> {
        match self {
            Self::Held(bits) => missing_capabilities(bits),
            Self::OfUserNamespace => Some(user_namespace()),
            // The first system call will show.
            Self::Unknown => None,
        }
    }
}

impl MachineFacts {
    fn here(cgroup: &Path) -> Self {
        let name = nix::sys::utsname::uname();
        let text = |part: &OsStr| part.to_string_lossy().into_owned();
        let [release, version] =
            name.map(|name| [name.release(), name.version()].map(text)).unwrap_or_default();
        Self {
            release,
            version,
            has_tcx: has_tcx(),
            is_jit_off: fs::read_to_string(JIT).is_ok_and(|text| text.trim() == "0"),
            has_btf: Path::new(VMLINUX).exists(),
            is_cgroup2: is_cgroup2(cgroup),
            is_of_host_time: !has_offset(&fs::read_to_string(OFFSETS).unwrap_or_default()),
            privileges: Privileges::here(),
        }
    }
}

/// Reports whether the offsets of a time namespace (`time_namespaces(7)`) move `CLOCK_MONOTONIC`.
fn has_offset(offsets: &str) -> bool {
    let mut lines = offsets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Kernels name the clock or give its number, 1.
    lines.any(|line| matches!(line[..], ["monotonic" | "1", seconds, rest] if seconds != "0" || rest != "0"))
}

fn is_cgroup2(path: &Path) -> bool {
    statfs(path).map(|stat| stat.filesystem_type()) == Ok(CGROUP2_SUPER_MAGIC)
}

/// Returns what is missing if a directory is not on a cgroup v2.
pub fn missing_cgroup2(path: &Path) -> Option<Requirement> {
    (!is_cgroup2(path)).then(|| cgroup2(path))
}

/// Asks the kernel for the tcx links of `lo`.
fn has_tcx() -> Option<bool> {
    const LOOPBACK: u32 = 1;
    match syscall::attached_to_device(LOOPBACK, Direction::Ingress.attach_type()) {
        Ok(_) => Some(true),
        // The kernel does not know the attach type (`bpf_prog_query` in kernel/bpf/syscall.c).
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Some(false),
        Err(_) => None,
    }
}

/// Returns all missing requirements of this machine.
pub fn requirements(cgroup: &Path) -> Vec<Requirement> {
    lacks(&MachineFacts::here(cgroup), cgroup)
}

fn lacks(facts: &MachineFacts, cgroup: &Path) -> Vec<Requirement> {
    let privileges = facts.privileges.lack();
    // Without privileges the kernel does not answer, and its release alone proves nothing.
    let kernel = if privileges.is_some() && facts.has_tcx.is_none() {
        None
    } else {
        kernel(&facts.release, facts.has_tcx)
    };
    let checks = [
        privileges,
        kernel,
        (!facts.has_btf).then(btf),
        facts.is_jit_off.then(jit),
        (!facts.is_cgroup2).then(|| cgroup2(cgroup)),
        (!facts.is_of_host_time).then(time_namespace),
        facts.version.contains(REALTIME).then(realtime),
    ];
    checks.into_iter().flatten().collect()
}

/// Checks that the kernel has tcx links: by its release if it could not be asked. A release that does not begin with
/// two numbers passes then: loading the programs will show. Distributions have the links in older releases, too.
fn kernel(release: &str, has_tcx: Option<bool>) -> Option<Requirement> {
    let is_old = release::parse(release).is_some_and(|it| it < KERNEL);
    let remedy = if is_old {
        "use Linux 6.12 or later (6.6 to 6.11 have tcx links, but were not tried)"
    } else {
        "use a kernel with CONFIG_NET_CLS_ACT=y"
    };
    let has_tcx = has_tcx.unwrap_or(!is_old);
    (!has_tcx).then(|| lack(format!("Linux {release} has no tcx links"), remedy))
}

fn jit() -> Requirement {
    lack(
        format!("{JIT} is 0: the kernel loads no programs that have functions and tail calls"),
        "sysctl -w net.core.bpf_jit_enable=1, and remove the setting that turned it off",
    )
}

fn user_namespace() -> Requirement {
    lack(
        "this is a user namespace, whose capabilities do not count for bpf(2)",
        "run in the initial one: no rootless container, and hostUsers not set to false",
    )
}

fn btf() -> Requirement {
    lack(
        format!("{VMLINUX} does not exist"),
        "use a kernel with CONFIG_DEBUG_INFO_BTF=y (all major distributions have it), and make \
         /sys visible here",
    )
}

fn time_namespace() -> Requirement {
    lack(
        "a time namespace moves CLOCK_MONOTONIC, by which the programs measure the age of flows",
        "run the agent without timeOffsets",
    )
}

/// The programs keep what they know of a packet in per-CPU memory. With `CONFIG_PREEMPT_RT` another packet's program
/// could run on the same CPU meanwhile and overwrite it.
fn realtime() -> Requirement {
    lack(
        "this is a CONFIG_PREEMPT_RT kernel: programs on one CPU may preempt each other",
        "use a kernel without CONFIG_PREEMPT_RT",
    )
}

fn cgroup2(path: &Path) -> Requirement {
    lack(
        format!("{} is not a cgroup v2", path.display()),
        "give its directory with --cgroup, or mount one: mount -t cgroup2 none DIR",
    )
}

fn missing_capabilities(held: u64) -> Option<Requirement> {
    let has = |bit: u32| held & 1 << bit != 0;
    // Until Linux 5.8, CAP_SYS_ADMIN included CAP_BPF and CAP_PERFMON, and the kernel still accepts it for them.
    let is_enough = |bit: u32| has(bit) || (bit != NET_ADMIN.0 && has(SYS_ADMIN));
    let missing: Vec<&str> = [BPF, NET_ADMIN, PERFMON]
        .into_iter()
        .filter(|(bit, _)| !is_enough(*bit))
        .map(|(_, name)| name)
        .collect();
    (!missing.is_empty()).then(|| {
        lack(
            format!("{} missing", missing.join(", ")),
            "run as root, or give the container these capabilities",
        )
    })
}

/// Returns the effective capabilities of this process.
pub fn capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Returns the cgroup2 mount to serve, from `/proc/mounts`: one below `/host` if there is one, else the first.
///
/// `deploy/daemonset.yaml` mounts the host's there; a pod's own cgroup2 contains only its own sockets.
pub fn find_cgroup2() -> Option<PathBuf> {
    served_cgroup2(&fs::read_to_string("/proc/mounts").ok()?)
}

fn served_cgroup2(mounts: &str) -> Option<PathBuf> {
    let all = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    });
    // `false` sorts before `true`, and of equal mounts the first is taken.
    all.min_by_key(|path| !path.starts_with("/host"))
}

#[cfg(test)]
mod tests;
