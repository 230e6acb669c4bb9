//! Compiles `lb-ebpf` for the kernel into `OUT_DIR`, where `datapath` includes it.
//!
//! With `AYA_BUILD_SKIP=1` (lints, unit tests) nothing is compiled: an object of an earlier build is
//! kept, else an empty one stands in, which the agent refuses to load by name.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context as _, Result};
use aya_build::{Package, Toolchain, build_ebpf};
use object::build::elf::{Builder, SectionData};

const OBJECT: &str = "lb-ebpf";

fn main() -> Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").context("CARGO_MANIFEST_DIR")?);
    let workspace = root.parent().context("lb-agent lies in the workspace")?;
    // aya-build watches lb-ebpf only; these decide the object as much.
    for path in ["lb-common", "lb-ebpf", "Cargo.toml", "Cargo.lock", ".cargo/config.toml"] {
        println!("cargo:rerun-if-changed={}", workspace.join(path).display());
    }
    println!("cargo:rerun-if-env-changed=RUSTC_BOOTSTRAP");
    let package = workspace.join(OBJECT);
    let package = Package {
        name: OBJECT,
        root_dir: package.to_str().context("path of the workspace is UTF-8")?,
        ..Package::default()
    };
    let toolchain = toolchain()?;
    // In this directory `.cargo/config.toml` makes cargo quiet.
    env::set_current_dir(package.root_dir).context("enter lb-ebpf")?;
    build_ebpf([package], Toolchain::Custom(&toolchain)).context(
        "compile lb-ebpf for the kernel: `cargo xtask setup` installs bpf-linker and rust-src, and \
         RUSTC_BOOTSTRAP=1 (from .cargo/config.toml, found when cargo runs inside the repository) must be set",
    )?;
    let object = PathBuf::from(env::var("OUT_DIR").context("OUT_DIR")?).join(OBJECT);
    if object.exists() {
        return strip(&object).with_context(|| format!("strip {}", object.display()));
    }
    fs::write(&object, []).with_context(|| format!("write {}", object.display()))
}

/// Removes the sections of DWARF, most of the object's bytes. The kernel
/// and the loader read BTF only, which is made of the same information.
fn strip(object: &Path) -> Result<()> {
    let data = fs::read(object)?;
    if data.is_empty() {
        return Ok(());
    }
    let mut elf = Builder::read(data.as_slice())?;
    for section in &mut elf.sections {
        let name = section.name.strip_prefix(b".rel").unwrap_or(&section.name);
        section.delete = name.starts_with(b".debug_");
    }
    elf.delete_orphans();
    // LLVM keeps the names of sections among those of symbols, the library does not.
    if !elf.sections.iter().any(|section| matches!(section.data, SectionData::SectionString)) {
        let names = elf.sections.add();
        names.name = b".shstrtab".as_slice().into();
        names.sh_type = object::elf::SHT_STRTAB;
        names.sh_addralign = 1;
        names.data = SectionData::SectionString;
    }
    let mut stripped = Vec::new();
    elf.write(&mut stripped)?;
    Ok(fs::write(object, stripped)?)
}

/// The argument with which `rustup run` finds the toolchain that compiles us: the full name that
/// rustup's proxy leaves in the environment, else (cargo called directly) the directory of our own rustc.
fn toolchain() -> Result<String> {
    if let Some(name) = env::var("RUSTUP_TOOLCHAIN").ok().filter(|name| !name.is_empty()) {
        return Ok(name);
    }
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsStr::new("rustc").to_owned());
    let output = std::process::Command::new(rustc)
        .args(["--print", "sysroot"])
        .output()
        .context("rustc --print sysroot")?;
    let sysroot = String::from_utf8(output.stdout).context("sysroot is UTF-8")?;
    Ok(sysroot.trim().to_owned())
}
