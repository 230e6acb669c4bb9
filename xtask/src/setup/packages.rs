//! System packages: the tools that the tests and the build call by name.

use std::process::Command;

use anyhow::{Result, bail};

use crate::setup::debian;
use crate::shell;
use crate::step::{present, step};

/// A command that must be found, and the Debian package that has it.
pub(crate) type Tool = (&'static str, &'static str);

/// What building and running call.
pub(crate) const TOOLS: [Tool; 6] = [
    ("cc", "gcc"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("iptables", "iptables"),
    ("nsenter", "util-linux"),
    ("tcpdump", "tcpdump"),
];

/// What starts the image in a test.
pub(crate) const CONTAINERS: [Tool; 2] = [("ctr", "containerd"), ("runc", "runc")];

/// What takes programs off and asks the kernel about them, as somebody else would, in tests.
pub(crate) const BYSTANDER: [Tool; 1] = [("bpftool", "bpftool")];

/// What looks at the report of benchmarks in a test.
pub(crate) const BROWSER: [Tool; 1] = [("chromium", "chromium")];

/// Installs the packages of the tools that are not found.
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
