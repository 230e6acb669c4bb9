//! `cargo xtask image`: the agent as an OCI image, written without a container daemon.
//!
//! One layer with one static file. The archive is a pure function of the binary: no times, no owners.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::{shell, workspace};

const TARGET: &str = "x86_64-unknown-linux-gnu";
const ARCHITECTURE: &str = "amd64";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Larger is a mistake.
const MOST_BYTES: u64 = 10 << 20;

/// Builds the binary and writes the archive.
pub(crate) fn run() -> Result<()> {
    let binary = build()?;
    let folder = workspace::target().join("image");
    let root = folder.join("root");
    let layout = folder.join("layout");
    for old in [&root, &layout] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("remove {}", old.display()))?;
        }
    }
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).with_context(|| format!("make {}", blobs.display()))?;
    fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    let _: u64 = fs::copy(&binary, root.join("lb-agent"))
        .with_context(|| format!("copy {}", binary.display()))?;

    let layer = folder.join("layer.tar");
    tar(&root, &layer, &["lb-agent"])?;
    let content = digest(&layer)?;
    shell::run(Command::new("gzip").args(["-9nf"]).arg(&layer), "apt-get install gzip")?;
    let layer = blob(&folder.join("layer.tar.gz"), &blobs)?;
    let config = write_blob(&blobs, &config(&content))?;
    let manifest = write_blob(&blobs, &manifest(&config, &layer))?;
    let index = index(&manifest);
    fs::write(layout.join("index.json"), index)
        .with_context(|| format!("write index.json of {}", layout.display()))?;
    let version = r#"{"imageLayoutVersion":"1.0.0"}"#;
    fs::write(layout.join("oci-layout"), version)
        .with_context(|| format!("write oci-layout of {}", layout.display()))?;

    let archive = folder.join(format!("lb-agent-{VERSION}.tar"));
    tar(&layout, &archive, &["oci-layout", "index.json", "blobs"])?;
    let size = || format!("size of {}", archive.display());
    let bytes = fs::metadata(&archive).with_context(size)?.len();
    println!("{} ({} KiB)", archive.display(), bytes / 1_024);
    if bytes > MOST_BYTES {
        bail!(
            "{} has {bytes} bytes, more than {MOST_BYTES}\nremedy: look for what made the agent larger",
            archive.display()
        );
    }
    Ok(())
}

/// The static, stripped binary.
fn build() -> Result<PathBuf> {
    // With --target the flags are for the agent only, not for build scripts and macros.
    let mut cargo = shell::cargo();
    let _: &mut Command = cargo
        .args(["build", "--release", "--package", "lb-agent", "--target", TARGET])
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols");
    shell::run(&mut cargo, "cargo xtask setup")?;
    Ok(workspace::target().join(TARGET).join("release/lb-agent"))
}

/// A blob's digest and size.
struct Blob {
    digest: String,
    bytes: u64,
}

fn tar(folder: &Path, archive: &Path, names: &[&str]) -> Result<()> {
    let mut tar = Command::new("tar");
    let _: &mut Command = tar
        .args(["--create", "--format=ustar", "--sort=name", "--mtime=@0", "--mode=u+rw,a+rX"])
        .args(["--owner=0", "--group=0", "--numeric-owner"])
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(folder)
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

fn config(content: &str) -> String {
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
        ARCHITECTURE, VERSION, content
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

fn index(manifest: &Blob) -> String {
    format!(
        concat!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","#,
            r#""manifests":[{{"mediaType":"application/vnd.oci.image.manifest.v1+json","#,
            r#""digest":"sha256:{}","size":{},"platform":{{"architecture":"{}","os":"linux"}},"#,
            r#""annotations":{{"org.opencontainers.image.ref.name":"{}","#,
            r#""io.containerd.image.name":"localhost/lb-agent:{}"}}}}]}}"#
        ),
        manifest.digest, manifest.bytes, ARCHITECTURE, VERSION, VERSION
    )
}
