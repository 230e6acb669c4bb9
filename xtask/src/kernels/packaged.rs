//! A packaged kernel: its image, and its modules in an order in which they can be loaded.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::setup::debian::Archive;
use crate::shell;

/// The modules that topologies need. Kernels with netkit have it built in.
const MODULES: [&str; 14] = [
    "veth",
    "bridge",
    "vxlan",
    "dummy",
    "8021q",
    "bonding",
    "macvlan",
    "ipvlan",
    "nf_tables",
    "nft_chain_nat",
    "nft_masq",
    "sch_ingress",
    "sctp",
    "xt_MASQUERADE",
];

/// An unpacked kernel.
pub(crate) struct Kernel {
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// The modules, each after those that it depends on.
    pub(crate) modules: Vec<PathBuf>,
}

/// Fetches the newest cloud kernel of a series from a suite; a cached one is used again.
pub(crate) fn fetch(version: &str, suite: &str, cache: &Path) -> Result<Kernel> {
    let directory = cache.join(version);
    let root = directory.join("root");
    if !root.is_dir() {
        fs::create_dir_all(&directory)
            .with_context(|| format!("directory {}", directory.display()))?;
        let archive = Archive::open(suite, &directory)?;
        let version = version.replace('.', "\\.");
        let names = archive
            .names(&format!("^linux-image-{version}[.][0-9a-z.+-]*-cloud-amd64(-unsigned)?$"))?;
        let name =
            names.last().with_context(|| format!("{suite} has no cloud kernel {version}"))?;
        // Since 7.x, modules and image are in separate packages.
        let release = name.trim_end_matches("-unsigned").trim_start_matches("linux-image-");
        let release = release.replace(['.', '+'], "[.+]");
        let modules = archive.names(&format!("^linux-(modules|binary)-{release}$"))?;
        // Half a kernel is never used: neither as the whole one, nor as a part of the next.
        let unpacked = directory.join("root.new");
        if unpacked.exists() {
            fs::remove_dir_all(&unpacked)
                .with_context(|| format!("remove {}", unpacked.display()))?;
        }
        for package in modules.iter().chain([name]) {
            let package = archive.download(package)?;
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("-x").arg(&package).arg(&unpacked);
            shell::run(&mut unpack, "remove the cache directory and run this command again")?;
        }
        fs::rename(&unpacked, &root).with_context(|| format!("rename {}", unpacked.display()))?;
    }
    let release = only(&modules_of(&root))?;
    let release = release.file_name().and_then(|name| name.to_str()).context("a release")?;
    let (alone, among) = (
        root.join(format!("boot/vmlinuz-{release}")),
        modules_of(&root).join(release).join("vmlinuz"),
    );
    Ok(Kernel {
        image: if alone.is_file() { alone } else { among },
        modules: modules(&root, release)?,
    })
}

/// The directory of modules; newer packages use the merged layout.
fn modules_of(root: &Path) -> PathBuf {
    let merged = root.join("usr/lib/modules");
    if merged.is_dir() { merged } else { root.join("lib/modules") }
}

fn only(directory: &Path) -> Result<PathBuf> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("directory {}", directory.display()))?;
    let mut entries: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    ensure!(entries.len() == 1, "{} holds {} kernels", directory.display(), entries.len());
    entries.pop().context("one")
}

/// The files of [`MODULES`] and of their dependencies.
fn modules(root: &Path, release: &str) -> Result<Vec<PathBuf>> {
    let all = modules_of(root);
    let base = all.ancestors().nth(2).unwrap_or(root);
    let mut depmod = Command::new("depmod");
    depmod.arg("-b").arg(base).arg(release);
    shell::run(&mut depmod, "apt-get install kmod")?;
    let directory = all.join(release);
    let file = directory.join("modules.dep");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let mut files = Vec::new();
    let mut known = BTreeSet::new();
    for wanted in MODULES {
        let Some(line) = text.lines().find(|line| is_of(line, wanted)) else { continue };
        let (module, needs) = line.split_once(':').context("a line of modules.dep")?;
        // The line lists the deepest dependency last.
        for name in needs.split_whitespace().rev().chain([module]) {
            if known.insert(name) {
                files.push(directory.join(name));
            }
        }
    }
    Ok(files)
}

/// Whether a line of `modules.dep` belongs to a module, whose file may be compressed.
fn is_of(line: &str, module: &str) -> bool {
    let file = line.split(':').next().unwrap_or_default();
    let name = file.rsplit('/').next().unwrap_or_default();
    name.split('.').next() == Some(module)
}

#[cfg(test)]
mod tests {
    use super::is_of;

    #[test]
    fn a_module_is_known_by_its_whole_name() {
        assert!(is_of("kernel/drivers/net/veth.ko.xz: a.ko.xz", "veth"));
        assert!(!is_of("kernel/drivers/net/veth_two.ko: kernel/veth.ko", "veth"));
    }
}
