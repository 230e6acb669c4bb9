//! Kinds of interfaces that a kernel may lack: each is detected by an attempt to create one.
//!
//! A test that needs a missing kind says so on standard output, where `cargo xtask test` counts it as ignored. Versions
//! and configurations of kernels are not consulted: a kernel that has the kind runs the test.

use std::io::{self, Write as _};
use std::process::Command;

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, unshare};

use crate::netns::run_after;

/// The kernel's words about a kind that it lacks.
const UNKNOWN: &str = "Unknown device type";

/// A kind of interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    MacVlan,
    /// IEEE 802.1Q.
    Vlan,
    Bond,
    Dummy,
    Netkit,
}

impl Kind {
    /// Returns its name, as ip-link(8) takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MacVlan => "macvlan",
            Self::Vlan => "vlan",
            Self::Bond => "bond",
            Self::Dummy => "dummy",
            Self::Netkit => "netkit",
        }
    }

    /// Whether the kernel lacks the kind: the test that asks ends then, and says why.
    pub fn is_skipped(self) -> Result<bool> {
        if self.is_there()? {
            return Ok(false);
        }
        // Past the capture of libtest, which would keep the line of a test that passes.
        let line = format!("skipped: this kernel has no interface of kind {}\n", self.name());
        io::stdout().write_all(line.as_bytes()).context("standard output")?;
        Ok(true)
    }

    /// Tries to make one in a network namespace that ends with the try.
    fn is_there(self) -> Result<bool> {
        let mut ip = Command::new("ip");
        ip.args(["link", "add", "probe", "type", self.name()]);
        let output = run_after(|| unshare(CloneFlags::CLONE_NEWNET), || ip.output())?;
        // Another refusal, such as a missing link below it, is that of a kernel that has the kind.
        let said = output.context("run ip")?.stderr;
        Ok(!String::from_utf8_lossy(&said).contains(UNKNOWN))
    }
}
