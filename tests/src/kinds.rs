//! Kinds of interfaces that a kernel may lack: each is detected by an attempt to create one.
//!
//! A test that needs a missing kind says so on standard output, where `cargo xtask test` counts it as ignored. Versions
//! and configurations of kernels are not consulted: a kernel that has the kind runs the test.

use std::process::Command;

use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, unshare};

use crate::netns::run_after;
use crate::skipped::skipped;

/// The error message of `ip` about a kind that the kernel lacks.
const UNKNOWN: &str = "Unknown device type";

/// A kind of interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    MacVlan,
    IpVlan,
    /// VLAN of IEEE 802.1Q.
    Vlan,
    Bond,
    Dummy,
    Netkit,
}

impl Kind {
    /// Returns the name for ip-link(8).
    pub const fn name(self) -> &'static str {
        match self {
            Self::MacVlan => "macvlan",
            Self::IpVlan => "ipvlan",
            Self::Vlan => "vlan",
            Self::Bond => "bond",
            Self::Dummy => "dummy",
            Self::Netkit => "netkit",
        }
    }

    /// Whether the kernel lacks the kind. If so, this prints the reason, and the test must return.
    pub fn is_skipped(self) -> Result<bool> {
        if self.is_there()? {
            return Ok(false);
        }
        skipped(&format!("interface of kind {}", self.name()))?;
        Ok(true)
    }

    /// Tries to create an interface of the kind, in a network namespace that ends with the attempt.
    fn is_there(self) -> Result<bool> {
        let mut ip = Command::new("ip");
        ip.args(["link", "add", "probe", "type", self.name()]);
        let output = run_after(|| unshare(CloneFlags::CLONE_NEWNET), || ip.output())?;
        // Any other error, such as a missing lower interface, comes from a kernel that has the kind.
        let said = output.context("run ip")?.stderr;
        Ok(!String::from_utf8_lossy(&said).contains(UNKNOWN))
    }
}
