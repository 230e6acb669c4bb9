//! `cargo xtask setup`: the tools that this repository needs, installed where they are missing, with a report of each.

use anyhow::Result;

pub(crate) mod cargo_tools;
mod control_plane;
pub(crate) mod debian;
pub(crate) mod packages;
mod rust_src;
mod wheel;

/// Installs everything that the build and the tests need.
pub(crate) fn run() -> Result<()> {
    for_running()?;
    packages::ensure("containerd and runc", &packages::CONTAINERS)?;
    packages::ensure("bpftool", &packages::BYSTANDER)?;
    packages::ensure("chromium", &packages::BROWSER)?;
    control_plane::ensure()
}

/// Installs everything for building and running the agent on this machine.
pub(crate) fn for_running() -> Result<()> {
    packages::ensure("system tools", &packages::TOOLS)?;
    for_building()
}

/// Installs everything for compiling the eBPF programs.
pub(crate) fn for_building() -> Result<()> {
    rust_src::ensure()?;
    cargo_tools::ensure(&cargo_tools::BPF_LINKER)
}
