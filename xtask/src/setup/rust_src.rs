//! The source of Rust's core library, from which it is compiled for the BPF target.
//!
//! rustup installs it as a component. Where rustup cannot download, Debian's package of exactly the same version
//! contains the same `library` directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::setup::debian;
use crate::shell;
use crate::step::{present, step};
use crate::workspace;

/// The Debian suite with current Rust releases.
const SUITE: &str = "trixie-backports";
const REMEDY: &str = "install Rust by rustup, with the version of rust-toolchain.toml";

/// Installs rust-src beside the compiler, unless it is installed.
pub(crate) fn ensure() -> Result<()> {
    let sysroot = shell::output(rustc().args(["--print", "sysroot"]), REMEDY)?;
    let version = version()?;
    let destination = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if is_there(&destination) {
        present(format!("rust-src {version}"));
        return Ok(());
    }
    step(format!("rust-src {version}"), "10 s", || {
        // rustup considers a recorded component installed even if its files are missing.
        let by_rustup = from_rustup().and_then(|()| {
            ensure!(is_there(&destination), "{} is missing\n{REMEDY}", destination.display());
            Ok(())
        });
        if by_rustup.is_err() && shell::find("apt-get").is_some() {
            println!("    rustup did not install it; using Debian's rust-src of the same version");
            return from_debian(&version, &destination);
        }
        by_rustup
    })
}

fn is_there(library: &Path) -> bool {
    library.join("core/src/lib.rs").is_file()
}

fn from_rustup() -> Result<()> {
    shell::output(
        Command::new("rustup").args(["component", "add", "rust-src"]),
        "rustup component add rust-src",
    )
    .map(drop)
}

/// Extracts the `library` directory of Debian's package and copies it into place.
fn from_debian(version: &str, destination: &Path) -> Result<()> {
    let scratch = workspace::cache()?.join(format!("rust-src-{version}"));
    if scratch.exists() {
        fs::remove_dir_all(&scratch).with_context(|| format!("directory {}", scratch.display()))?;
    }
    fs::create_dir_all(&scratch).with_context(|| format!("directory {}", scratch.display()))?;
    let package = debian::download("rust-src", version, SUITE, &scratch)?;
    let library = unpack(&package, &scratch)?;
    if let Some(parent) = destination.parent() {
        fs::create_dir_all(parent).with_context(|| format!("directory {}", parent.display()))?;
    }
    // A copy, not a rename: cache and sysroot may lie on different file systems.
    shell::run(
        Command::new("cp").arg("-rT").arg(&library).arg(destination),
        "make the compiler's sysroot writable for this user",
    )?;
    fs::remove_dir_all(&scratch).with_context(|| format!("directory {}", scratch.display()))
}

/// Unpacks only the library directory; the package also contains the compiler's source.
fn unpack(package: &Path, directory: &Path) -> Result<PathBuf> {
    let remedy = "remove the cache directory and run this command again";
    let mut archive = Command::new("dpkg")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .context("dpkg could not be started")?;
    let pipe = archive.stdout.take().context("dpkg has no output")?;
    let unpacked = Command::new("tar")
        .arg("-C")
        .arg(directory)
        .args(["-x", "--wildcards", "--no-wildcards-match-slash"])
        .args(["--strip-components=4", "./usr/src/rustc-*/library"])
        .stdin(pipe)
        .status()
        .context("tar could not be started")?;
    let read = archive.wait().context("dpkg did not end")?;
    ensure!(read.success() && unpacked.success(), "{} is damaged\n{remedy}", package.display());
    Ok(directory.join("library"))
}

/// Returns the version of the compiler, such as `1.95.0`.
fn version() -> Result<String> {
    let line = shell::output(rustc().arg("--version"), REMEDY)?;
    let version = line.split_whitespace().nth(1);
    Ok(version.with_context(|| format!("rustc calls itself {line:?}"))?.to_owned())
}

fn rustc() -> Command {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(workspace::root());
    rustc
}
