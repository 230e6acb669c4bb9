//! Compiles `lb-ebpf` for the kernel into `OUT_DIR`, where `datapath` includes it.

use anyhow::{Context as _, Result};
use aya_build::{Package, Toolchain, build_ebpf};

fn main() -> Result<()> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../lb-ebpf");
    let package = Package { name: "lb-ebpf", root_dir: root, ..Package::default() };
    build_ebpf([package], Toolchain::Custom(env!("CARGO_PKG_RUST_VERSION")))
        .context("compile lb-ebpf for the kernel (cargo xtask setup installs bpf-linker and rust-src)")
}
