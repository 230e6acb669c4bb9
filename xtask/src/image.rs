//! `cargo xtask image`: the agent as an OCI image, written without a container daemon.
//!
//! Users get a release build. Tests get an image of the same form, one static file, with the debug build that they
//! share with all other tests: a release build of every dependency takes minutes (ADR 0036).

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::setup::{self, packages};
use crate::{shell, workspace};

mod archive;

use archive::{Agent, Form};

/// The options of the image.
#[derive(Args)]
pub(crate) struct Options {
    /// Platforms of the image
    #[arg(long, value_delimiter = ',', default_value = "linux/amd64")]
    platform: Vec<Platform>,
    /// Debug build for this machine, in target/image/debug, as the test of the image takes it (cold 5 min, warm 5 s)
    #[arg(long, conflicts_with = "platform")]
    debug: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { platform: vec![Platform::Amd64], debug: false }
    }
}

/// A platform of nodes.
#[derive(Clone, Copy, ValueEnum)]
enum Platform {
    #[value(name = "linux/amd64")]
    Amd64,
    #[value(name = "linux/arm64")]
    Arm64,
}

impl Platform {
    /// The platform of this machine.
    const HERE: Self = if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 };

    /// The architecture as OCI images name it.
    const fn architecture(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The target triple of the compiler.
    const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }
}

/// Installs missing tools, builds the binaries, by default for release, and writes `target/image/lb-agent-VERSION.tar`.
pub(crate) fn run(options: &Options) -> Result<()> {
    setup::for_building()?;
    if options.debug {
        return for_tests();
    }
    let form =
        Form { directory: workspace::target().join("image"), most_bytes: 10 << 20, effort: "-9" };
    let agent = |platform: &Platform| {
        Ok(Agent { architecture: platform.architecture(), binary: release(*platform)? })
    };
    let agents = options.platform.iter().map(agent).collect::<Result<Vec<_>>>()?;
    archive::write(&form, &agents).map(drop)
}

/// Writes `target/image/debug/lb-agent-VERSION.tar`, which the image test uses.
pub(crate) fn for_tests() -> Result<()> {
    let form = Form {
        directory: workspace::target().join("image/debug"),
        most_bytes: 24 << 20,
        effort: "-1",
    };
    let agent = Agent { architecture: Platform::HERE.architecture(), binary: debug()? };
    archive::write(&form, &[agent])?;
    // Tests use the binary beside their own, which must have symbols: a plain build links it again.
    shell::run(
        shell::cargo().args(["build", "--quiet", "--workspace", "--bin", "lb-agent"]),
        "fix what cargo reports",
    )
}

/// Builds the static, stripped binary for nodes; returns its path.
fn release(platform: Platform) -> Result<PathBuf> {
    let target = platform.target();
    // With --target the flags apply to the agent only, not to build scripts and macros.
    let mut cargo = shell::cargo();
    cargo
        .args(["build", "--release", "--package", "lb-agent", "--target", target])
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols");
    if matches!(platform, Platform::Arm64) {
        packages::ensure("cross compiler", &packages::CROSS)?;
        standard_library(&mut cargo);
        let linker = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER";
        cargo.env(linker, "aarch64-linux-gnu-gcc");
    }
    shell::run(&mut cargo, "cargo xtask setup")?;
    Ok(workspace::target().join(target).join("release/lb-agent"))
}

/// Builds the static, stripped binary of the debug build; returns its path. Only the last step, which links it, has
/// special flags.
fn debug() -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo
        .args(["rustc", "--quiet", "--package", "lb-agent", "--bin", "lb-agent"])
        // Only one package is selected, but its dependencies must get the features that the whole workspace enables.
        .args([
            "-Z",
            "feature-unification",
            "--config",
            r#"resolver.feature-unification="workspace""#,
        ])
        .args(["--", "-C", "target-feature=+crt-static", "-C", "strip=symbols"])
        .env("RUSTC_BOOTSTRAP", "1");
    shell::run(&mut cargo, "fix what cargo reports")?;
    Ok(workspace::target().join("debug/lb-agent"))
}

/// Checks that the agent compiles for arm64, which no test runs on.
pub(crate) fn check_arm64() -> Result<()> {
    let mut cargo = shell::cargo();
    cargo
        .args(["check", "--quiet", "--package", "lb-agent", "--target", Platform::Arm64.target()])
        .env("AYA_BUILD_SKIP", "1")
        // Nothing is linked, so the C code that build scripts of dependencies compile is not needed, and no cross
        // compiler must be installed.
        .env("CC_aarch64_unknown_linux_gnu", "true")
        .env("AR_aarch64_unknown_linux_gnu", "true");
    standard_library(&mut cargo);
    shell::run(&mut cargo, "fix what cargo reports: types of C differ between architectures")
}

/// Makes cargo build the standard library of another architecture from the sources that the eBPF programs need as well,
/// because rustup cannot download it everywhere.
fn standard_library(cargo: &mut Command) {
    cargo.args(["-Z", "build-std=std,panic_unwind"]).env("RUSTC_BOOTSTRAP", "1");
}
