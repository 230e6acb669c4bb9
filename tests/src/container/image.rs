//! An archive of the agent's image, read as a registry would read it: every blob by its digest.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::process::run;

/// The archive of one image.
#[derive(Debug)]
pub struct Image {
    archive: PathBuf,
    /// The name as containerd and the kubelet write it.
    name: String,
    config: Value,
}

impl Image {
    /// Opens the archive of the debug build, or the one that `LB_IMAGE` names.
    pub fn open() -> Result<Self> {
        let built = concat!("image/debug/lb-agent-", env!("CARGO_PKG_VERSION"), ".tar");
        let archive = match env::var_os("LB_IMAGE") {
            Some(archive) => archive.into(),
            None => target()?.join(built),
        };
        ensure!(
            archive.is_file(),
            "no image {}\nremedy: cargo xtask image --debug",
            archive.display()
        );
        let index = json(&archive, "index.json")?;
        let entry = &index["manifests"][0];
        let name = entry["annotations"]["io.containerd.image.name"].as_str();
        let name = name.context("the index names no image")?.to_owned();
        let manifest = blob(&archive, entry)?;
        let config = blob(&archive, &manifest["config"])?;
        Ok(Self { archive, name, config })
    }

    /// Returns the path of the archive.
    pub fn archive(&self) -> &Path {
        &self.archive
    }

    /// Returns the name as containerd keeps it, with registry and tag.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.config["config"]["Labels"][name].as_str()
    }

    /// Returns the entry point, which precedes the arguments of a pod.
    pub(super) fn entry_point(&self) -> impl Iterator<Item = String> {
        let words = self.config["config"]["Entrypoint"].as_array().into_iter().flatten();
        words.filter_map(|word| word.as_str().map(str::to_owned))
    }
}

/// Cargo's target directory; the program of a test is in `debug/deps` below it.
fn target() -> Result<PathBuf> {
    let test = env::current_exe()?;
    let directory = test.ancestors().nth(3).context("a test outside of cargo's directory")?;
    Ok(directory.to_owned())
}

fn file(archive: &Path, name: &str) -> Result<String> {
    run(
        Command::new("tar")
            .arg("--extract")
            .arg("--to-stdout")
            .arg("--file")
            .args([archive, name.as_ref()]),
        "",
    )
}

fn json(archive: &Path, name: &str) -> Result<Value> {
    serde_json::from_str(&file(archive, name)?).with_context(|| format!("{name} of the image"))
}

/// Reads the blob of a descriptor, and checks its digest and size.
fn blob(archive: &Path, descriptor: &Value) -> Result<Value> {
    let digest = descriptor["digest"].as_str().context("a descriptor without digest")?;
    let digest = digest.strip_prefix("sha256:").context("another digest than sha256")?;
    let text = file(archive, &format!("blobs/sha256/{digest}"))?;
    let found = run(&mut Command::new("sha256sum"), &text)?;
    ensure!(found.starts_with(digest), "blob {digest} is {found}");
    ensure!(descriptor["size"] == text.len(), "blob {digest} has {} bytes", text.len());
    serde_json::from_str(&text).with_context(|| format!("blob {digest}"))
}
