//! `cargo xtask image`: the agent as an OCI image, written without a container daemon.
//!
//! One layer with one static file for each platform, and one index of them. The archive is a pure function of the binaries:
//! no times, no owners.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};

use crate::setup::packages;
use crate::{shell, workspace};

/// For whom.
#[derive(Args)]
pub(crate) struct Options {
    /// Platforms of the image
    #[arg(long, value_delimiter = ',', default_value = "linux/amd64")]
    platform: Vec<Platform>,
}

impl Default for Options {
    fn default() -> Self {
        Self { platform: vec![Platform::Amd64] }
    }
}

/// An architecture of nodes.
#[derive(Clone, Copy, ValueEnum)]
enum Platform {
    #[value(name = "linux/amd64")]
    Amd64,
    #[value(name = "linux/arm64")]
    Arm64,
}

impl Platform {
    /// As images have it.
    const fn architecture(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// As the compiler has it.
    const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Larger is a mistake.
const MOST_BYTES: u64 = 10 << 20;

/// Builds the binaries and writes the archive.
pub(crate) fn run(options: &Options) -> Result<()> {
    let directory = workspace::target().join("image");
    let layout = directory.join("layout");
    if layout.exists() {
        fs::remove_dir_all(&layout).with_context(|| format!("remove {}", layout.display()))?;
    }
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).with_context(|| format!("make {}", blobs.display()))?;
    let manifests: Result<Vec<String>> =
        options.platform.iter().map(|platform| image(*platform, &directory, &blobs)).collect();
    let index = index(&manifests?);
    fs::write(layout.join("index.json"), index)
        .with_context(|| format!("write index.json of {}", layout.display()))?;
    let version = r#"{"imageLayoutVersion":"1.0.0"}"#;
    fs::write(layout.join("oci-layout"), version)
        .with_context(|| format!("write oci-layout of {}", layout.display()))?;
    let archive = directory.join(format!("lb-agent-{VERSION}.tar"));
    tar(&layout, &archive, &["oci-layout", "index.json", "blobs"])?;
    println!("{}", archive.display());
    Ok(())
}

/// Builds the image of a platform, and returns how an index names it.
fn image(platform: Platform, directory: &Path, blobs: &Path) -> Result<String> {
    let binary = build(platform)?;
    let root = directory.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    }
    fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    let _: u64 = fs::copy(&binary, root.join("lb-agent"))
        .with_context(|| format!("copy {}", binary.display()))?;
    let layer = directory.join("layer.tar");
    tar(&root, &layer, &["lb-agent"])?;
    let content = digest(&layer)?;
    shell::run(Command::new("gzip").args(["-9nf"]).arg(&layer), "apt-get install gzip")?;
    let layer = blob(&directory.join("layer.tar.gz"), blobs)?;
    let architecture = platform.architecture();
    println!("linux/{architecture}: {} KiB", layer.bytes / 1_024);
    if layer.bytes > MOST_BYTES {
        bail!(
            "the layer of {architecture} has {} bytes, more than {MOST_BYTES}\n\
             remedy: look for what made the agent larger",
            layer.bytes
        );
    }
    let config = write_blob(blobs, &config(architecture, &content))?;
    let manifest = write_blob(blobs, &manifest(&config, &layer))?;
    Ok(entry(architecture, &manifest))
}

/// The static, stripped binary.
fn build(platform: Platform) -> Result<PathBuf> {
    let target = platform.target();
    // With --target the flags are for the agent only, not for build scripts and macros.
    let mut cargo = shell::cargo();
    let _: &mut Command = cargo
        .args(["build", "--release", "--package", "lb-agent", "--target", target])
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols");
    if matches!(platform, Platform::Arm64) {
        cross(&mut cargo)?;
    }
    shell::run(&mut cargo, "cargo xtask setup")?;
    Ok(workspace::target().join(target).join("release/lb-agent"))
}

/// Checks that the agent compiles for the architecture that nothing here runs on.
pub(crate) fn check_arm64() -> Result<()> {
    let mut cargo = shell::cargo();
    let _: &mut Command = cargo
        .args(["check", "--quiet", "--package", "lb-agent", "--target", Platform::Arm64.target()])
        .env("AYA_BUILD_SKIP", "1");
    cross(&mut cargo)?;
    shell::run(&mut cargo, "mend what cargo names: types of C differ between architectures")
}

/// Lets cargo compile for arm64 on another machine.
fn cross(cargo: &mut Command) -> Result<()> {
    packages::ensure("cross compiler", &packages::CROSS)?;
    // The standard library is built from the sources that the programs for the kernel need too.
    let _: &mut Command = cargo
        .args(["-Z", "build-std=std,panic_unwind"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    Ok(())
}

/// A blob's digest and size.
struct Blob {
    digest: String,
    bytes: u64,
}

fn tar(directory: &Path, archive: &Path, names: &[&str]) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=ustar", "--sort=name", "--mtime=@0", "--mode=u+rw,a+rX"])
        .args(["--owner=0", "--group=0", "--numeric-owner"])
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(directory)
        .args(names);
    shell::run(&mut tar, "apt-get install tar")
}

fn digest(file: &Path) -> Result<String> {
    let line = shell::output(Command::new("sha256sum").arg(file), "apt-get install coreutils")?;
    let digest = line
        .split_whitespace()
        .next()
        .with_context(|| format!("no digest of {}", file.display()))?;
    Ok(digest.to_owned())
}

/// Moves a file to where its digest says.
fn blob(file: &Path, blobs: &Path) -> Result<Blob> {
    let what = || format!("blob {}", file.display());
    let (digest, bytes) = (digest(file)?, fs::metadata(file).with_context(what)?.len());
    fs::rename(file, blobs.join(&digest)).with_context(what)?;
    Ok(Blob { digest, bytes })
}

fn write_blob(blobs: &Path, text: &str) -> Result<Blob> {
    let file = blobs.join("new");
    fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    blob(&file, blobs)
}

fn config(architecture: &str, content: &str) -> String {
    format!(
        concat!(
            r#"{{"architecture":"{}","os":"linux","config":{{"User":"0","#,
            r#""Env":["PATH=/"],"Entrypoint":["/lb-agent"],"Cmd":["run"],"Labels":{{"#,
            r#""org.opencontainers.image.title":"lb-agent","#,
            r#""org.opencontainers.image.version":"{}","#,
            r#""org.opencontainers.image.licenses":"MIT OR Apache-2.0","#,
            r#""org.opencontainers.image.description":"Kubernetes Services through eBPF, in place of kube-proxy""#,
            r#"}}}},"rootfs":{{"type":"layers","diff_ids":["sha256:{}"]}}}}"#
        ),
        architecture, VERSION, content
    )
}

fn manifest(config: &Blob, layer: &Blob) -> String {
    format!(
        concat!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","#,
            r#""config":{{"mediaType":"application/vnd.oci.image.config.v1+json","#,
            r#""digest":"sha256:{}","size":{}}},"layers":[{{"#,
            r#""mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","#,
            r#""digest":"sha256:{}","size":{}}}]}}"#
        ),
        config.digest, config.bytes, layer.digest, layer.bytes
    )
}

/// The entry of an index for the image of a platform.
fn entry(architecture: &str, manifest: &Blob) -> String {
    format!(
        concat!(
            r#"{{"mediaType":"application/vnd.oci.image.manifest.v1+json","#,
            r#""digest":"sha256:{}","size":{},"platform":{{"architecture":"{}","os":"linux"}},"#,
            r#""annotations":{{"org.opencontainers.image.ref.name":"{}","#,
            r#""io.containerd.image.name":"localhost/lb-agent:{}"}}}}"#
        ),
        manifest.digest, manifest.bytes, architecture, VERSION, VERSION
    )
}

fn index(entries: &[String]) -> String {
    let entries = entries.join(",");
    format!(
        concat!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","#,
            r#""manifests":[{}]}}"#
        ),
        entries
    )
}
