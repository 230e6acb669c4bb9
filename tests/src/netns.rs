//! Network namespaces with names that `ip netns` shows; dropping the value deletes the namespace.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, setns};

use crate::process::{ensure_root, run};

/// The directory where `ip netns` keeps a file for each named namespace.
pub const NAMES: &str = "/run/netns";

/// A network namespace of a test, with its loopback interface up.
#[derive(Debug)]
pub struct Netns {
    name: String,
    handle: Arc<File>,
    kept: bool,
}

impl Netns {
    /// Makes a namespace; a leftover with the same name is replaced.
    pub fn new(name: &str) -> Result<Self> {
        ensure_root()?;
        let path = PathBuf::from(NAMES).join(name);
        if path.exists() {
            drop(run(Command::new("ip").args(["netns", "delete", name]), "")?);
        }
        drop(run(Command::new("ip").args(["netns", "add", name]), "")?);
        let handle = File::open(&path).with_context(|| format!("namespace {}", path.display()))?;
        let netns = Self { name: name.to_owned(), handle: Arc::new(handle), kept: false };
        // Set before any interface exists, so that every interface inherits it and addresses are usable at once.
        netns.sysctl("net.ipv6.conf.all.accept_dad", "0")?;
        netns.sysctl("net.ipv6.conf.default.accept_dad", "0")?;
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// Keeps the namespace when the value is dropped.
    pub(crate) const fn keep(&mut self) {
        self.kept = true;
    }

    /// Returns its name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the open namespace.
    pub(crate) fn handle(&self) -> Arc<File> {
        Arc::clone(&self.handle)
    }

    /// Runs `work` inside, on a thread of its own; a panic there becomes a panic here.
    pub fn run_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        run_in(&self.handle, work).with_context(|| format!("enter namespace {}", self.name))
    }

    /// Reads a file of `/proc/net`, such as `tcp` or `snmp`, inside the namespace.
    pub fn proc_net(&self, file: &str) -> Result<String> {
        self.run_in(|| fs::read_to_string(format!("/proc/thread-self/net/{file}")))?
            .with_context(|| format!("{file} of the network of {}", self.name))
    }

    /// Returns the counters in a file of `/proc/net` (`snmp`, `snmp6`, `netstat`) by name. The files of two lines for
    /// each group have the group in the name: `Tcp OutRsts`.
    pub fn counters(&self, file: &str) -> Result<BTreeMap<String, i64>> {
        let text = self.proc_net(file)?;
        let (mut lines, mut all) = (text.lines(), BTreeMap::new());
        while let Some(line) = lines.next() {
            if let Some((group, names)) = line.split_once(": ") {
                let values = lines.next().and_then(|values| values.split_once(": "));
                let (_, values) = values.with_context(|| format!("values of {group} in {file}"))?;
                for (name, value) in names.split(' ').zip(values.split(' ')) {
                    all.insert(format!("{group} {name}"), value.parse()?);
                }
            } else if let Some((name, value)) = line.split_once(char::is_whitespace) {
                all.insert(name.to_owned(), value.trim().parse()?);
            }
        }
        Ok(all)
    }

    /// Returns one of [`Netns::counters`].
    pub fn counter(&self, file: &str, name: &str) -> Result<i64> {
        let all = self.counters(file)?;
        all.get(name).copied().with_context(|| format!("no {name} in {file} of {}", self.name))
    }

    /// Runs `ip` commands inside, one for each line; stops at the first that fails.
    pub fn ip(&self, commands: &str) -> Result<()> {
        let lines: Vec<&str> = commands.lines().map(str::trim).collect();
        let mut ip = Command::new("ip");
        run(ip.args(["-n", &self.name, "-batch", "-"]), &lines.join("\n")).map(drop)
    }

    /// Runs a tool inside and returns its output.
    pub fn tool(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.tool_fed(program, arguments, "")
    }

    /// Runs a tool inside with `input` as its standard input.
    pub fn tool_fed(&self, program: &str, arguments: &[&str], input: &str) -> Result<String> {
        let mut nsenter = Command::new("nsenter");
        let namespace = format!("--net={NAMES}/{}", self.name);
        nsenter.args([&namespace, "--", program]).args(arguments);
        run(&mut nsenter, input)
    }

    /// Sets the time for which conntrack remembers datagrams that arrive from now on, in seconds.
    pub fn remember_datagrams(&self, seconds: u32) -> Result<()> {
        ["udp_timeout", "udp_timeout_stream"].into_iter().try_for_each(|name| {
            self.sysctl(&format!("net.netfilter.nf_conntrack_{name}"), &seconds.to_string())
        })
    }

    /// Disables the rate limits of ICMP errors. The default is one a second to a client after a few, and a limit for
    /// all clients together.
    pub(crate) fn report_every_error(&self) -> Result<()> {
        for (setting, value) in [
            ("net.ipv4.icmp_ratelimit", "0"),
            ("net.ipv4.icmp_msgs_per_sec", "100000"),
            ("net.ipv4.icmp_msgs_burst", "10000"),
            ("net.ipv6.icmp.ratelimit", "0"),
        ] {
            self.sysctl(setting, value)?;
        }
        Ok(())
    }

    /// Sets a sysctl of the namespace, such as `net.ipv4.ip_forward`.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        // An interface name may contain a dot, which is written as a slash in the name of a sysctl.
        let path: String = name
            .chars()
            .map(|c| match c {
                '.' => '/',
                '/' => '.',
                c => c,
            })
            .collect();
        let path = PathBuf::from("/proc/sys").join(path);
        self.run_in(|| fs::write(&path, value))?
            .with_context(|| format!("setting {name}={value} in {}", self.name))
    }
}

/// Runs `work` in an open namespace, on a thread of its own; a panic there becomes a panic here.
pub(crate) fn run_in<T: Send>(netns: &File, work: impl FnOnce() -> T + Send) -> Result<T> {
    run_after(|| setns(netns, CloneFlags::CLONE_NEWNET), work)
}

/// Runs `work` on a thread that `enter` has moved into a namespace; a panic there becomes a panic here.
pub(crate) fn run_after<T: Send>(
    enter: impl FnOnce() -> nix::Result<()> + Send,
    work: impl FnOnce() -> T + Send,
) -> Result<T> {
    let inside = || -> Result<T> {
        enter()?;
        Ok(work())
    };
    match thread::scope(|scope| scope.spawn(inside).join()) {
        Ok(result) => result,
        Err(panic) => resume_unwind(panic),
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if !self.kept {
            // A failure has no remedy here; the next run removes leftovers.
            drop(run(Command::new("ip").args(["netns", "delete", &self.name]), ""));
        }
    }
}
