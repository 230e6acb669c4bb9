//! The OCI archive of an image: one layer with one file for each platform, and one index of all platforms.
//!
//! The archive is a pure function of the binaries: it holds no times and no owners.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::shell;

/// The binary for the layer of one platform.
pub(super) struct Agent {
    /// The architecture as OCI images name it.
    pub(super) architecture: &'static str,
    /// The path of the static, stripped binary.
    pub(super) binary: PathBuf,
}

/// The directory and the limits of an archive.
pub(super) struct Form {
    pub(super) directory: PathBuf,
    /// The limit for a layer, in bytes. A larger one is a mistake.
    pub(super) most_bytes: u64,
    /// The compression level, as an option of gzip.
    pub(super) effort: &'static str,
}

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Writes the archive with these binaries, and returns its path.
pub(super) fn write(form: &Form, agents: &[Agent]) -> Result<PathBuf> {
    let layout = form.directory.join("layout");
    if layout.exists() {
        fs::remove_dir_all(&layout).with_context(|| format!("remove {}", layout.display()))?;
    }
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).with_context(|| format!("make {}", blobs.display()))?;
    let manifests: Result<Vec<String>> =
        agents.iter().map(|agent| image(agent, form, &blobs)).collect();
    let index = index(&manifests?);
    fs::write(layout.join("index.json"), index)
        .with_context(|| format!("write index.json of {}", layout.display()))?;
    let version = r#"{"imageLayoutVersion":"1.0.0"}"#;
    fs::write(layout.join("oci-layout"), version)
        .with_context(|| format!("write oci-layout of {}", layout.display()))?;
    let archive = form.directory.join(format!("lb-agent-{VERSION}.tar"));
    tar(&layout, &archive, &["oci-layout", "index.json", "blobs"])?;
    println!("{}", archive.display());
    Ok(archive)
}

/// Writes the blobs of a platform, and returns the descriptor for an index.
fn image(agent: &Agent, form: &Form, blobs: &Path) -> Result<String> {
    let Agent { architecture, binary } = agent;
    let root = form.directory.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
    }
    fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    fs::copy(binary, root.join("lb-agent"))
        .with_context(|| format!("copy {}", binary.display()))?;
    let layer = form.directory.join("layer.tar");
    tar(&root, &layer, &["lb-agent"])?;
    let content = digest(&layer)?;
    let mut gzip = Command::new("gzip");
    shell::run(gzip.args(["-nf", form.effort]).arg(&layer), "apt-get install gzip")?;
    let layer = blob(&form.directory.join("layer.tar.gz"), blobs)?;
    println!("linux/{architecture}: {} KiB", layer.bytes / 1_024);
    if layer.bytes > form.most_bytes {
        bail!(
            "the layer of {architecture} has {} bytes, more than {}\n\
             remedy: look for what made the agent larger",
            layer.bytes,
            form.most_bytes
        );
    }
    let config = write_blob(blobs, &config(architecture, &content))?;
    let manifest = write_blob(blobs, &manifest(&config, &layer))?;
    Ok(entry(architecture, &manifest))
}

/// The digest and the size of a blob.
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

/// Moves a file to the path that its digest determines.
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

/// The descriptor of a platform's image in an index.
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
