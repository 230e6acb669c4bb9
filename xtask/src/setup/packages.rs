//! System packages: the tools that the tests and the build call by name.

use std::process::Command;

use anyhow::{Result, bail};

use crate::setup::debian;
use crate::shell;
use crate::step::{present, step};

/// A command, and the Debian package that contains it.
pub(crate) type Tool = (&'static str, &'static str);

/// Tools for building the repository and for running the tests.
pub(crate) const TOOLS: [Tool; 6] = [
    ("cc", "gcc"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("nsenter", "util-linux"),
    ("tcpdump", "tcpdump"),
];

/// Tools that start the image in a test.
pub(crate) const CONTAINERS: [Tool; 2] = [("ctr", "containerd"), ("runc", "runc")];

/// A tool with which tests remove programs and query the kernel, as other software would.
pub(crate) const BYSTANDER: [Tool; 1] = [("bpftool", "bpftool")];

/// Tools that boot other kernels and create their root file system.
pub(crate) const EMULATION: [Tool; 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("strip", "binutils"),
    ("xz", "xz-utils"),
];

/// Tools that compile for arm64 on other machines.
pub(crate) const CROSS: [Tool; 2] = [
    ("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("aarch64-linux-gnu-gcc", "libc6-dev-arm64-cross"),
];

/// A browser for the test of the benchmark report.
pub(crate) const BROWSER: [Tool; 1] = [("chromium", "chromium")];

/// Installs the packages of missing tools.
pub(crate) fn ensure(what: &str, tools: &[Tool]) -> Result<()> {
    let missing: Vec<Tool> =
        tools.iter().copied().filter(|(tool, _)| shell::find(tool).is_none()).collect();
    if missing.is_empty() {
        present(what);
        return Ok(());
    }
    let tools = missing.iter().map(|(tool, _)| *tool).collect::<Vec<_>>().join(", ");
    let mut packages: Vec<&str> = missing.into_iter().map(|(_, package)| package).collect();
    packages.dedup();
    let packages_spelt = packages.join(" ");
    if shell::find("apt-get").is_none() {
        bail!(
            "not found: {tools}\nremedy: install them with your package manager (Debian calls \
             the packages {packages_spelt})"
        );
    }
    if !shell::is_root() {
        bail!("not found: {tools}\nremedy: sudo apt-get install {packages_spelt}");
    }
    step(format!("Debian packages {packages_spelt}"), "1 min", || {
        debian::refresh()?;
        shell::run(
            Command::new("apt-get")
                .args(["install", "-qq", "--yes", "--no-install-recommends", "-oDpkg::Use-Pty=0"])
                .args(&packages)
                .env("DEBIAN_FRONTEND", "noninteractive"),
            "install these packages by hand, then run this command again",
        )
    })
}
