//! Debian's archive, seen through apt's own configuration: this machine's mirror, never one of ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::shell;

/// Signs every Debian suite; installed on every Debian machine.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Refreshes apt's package lists.
pub(crate) fn refresh() -> Result<()> {
    shell::run(
        Command::new("apt-get").args(["update", "-qq"]),
        "check the sources that apt is configured with, then run this command again",
    )
}

/// Downloads `package` of exactly `version` from `suite` into `folder`, and returns the file.
///
/// The suite need not be configured on this machine: it is asked for through a source list, package
/// lists and a cache of our own inside `folder`, so that the machine's apt stays as it was.
pub(crate) fn download(
    package: &str,
    version: &str,
    suite: &str,
    folder: &Path,
) -> Result<PathBuf> {
    let mirror = mirror()?;
    let source_list = folder.join("sources.list");
    fs::write(&source_list, format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))
        .with_context(|| format!("source list {}", source_list.display()))?;
    for private in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(folder.join(private))
            .with_context(|| format!("folder {}/{private}", folder.display()))?;
    }
    let private_apt = || {
        let mut apt = Command::new("apt-get");
        let _: &mut Command = apt
            .current_dir(folder)
            .arg("-qq")
            .arg("-oDir::Etc::SourceParts=/dev/null")
            .arg("-oAPT::Sandbox::User=root")
            .arg(format!("-oDir::Etc::SourceList={}", source_list.display()))
            .arg(format!("-oDir::State::Lists={}", folder.join("lists").display()))
            .arg(format!("-oDir::Cache={}", folder.join("cache").display()));
        apt
    };
    let wanted = format!("{package}={version}*");
    let remedy = format!("provide {package} {version} by other means: {suite} does not hold it");
    shell::run(private_apt().arg("update"), &remedy)?;
    shell::run(private_apt().args(["download", &wanted]), &remedy)?;
    fs::read_dir(folder)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|file| file.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("no package file in {}\nremedy: {remedy}", folder.display()))
}

/// Returns the address of the mirror that apt is configured with for Debian's main archive.
fn mirror() -> Result<String> {
    let configured = || {
        let list = shell::output(
            Command::new("apt-get").args([
                "indextargets",
                "--format=$(ORIGIN) $(RELEASE) $(REPO_URI)",
                "Created-By: Packages",
            ]),
            "configure a Debian mirror for apt",
        )?;
        anyhow::Ok(main_archive(&list).map(str::to_owned))
    };
    if let Some(mirror) = configured()? {
        return Ok(mirror);
    }
    // Without package lists apt names no target: fetch them once.
    refresh()?;
    configured()?.context("apt has no source of Debian's main archive\nremedy: configure one")
}

/// Picks the main archive out of lines of `origin release address`.
fn main_archive(targets: &str) -> Option<&str> {
    targets.lines().find_map(|line| {
        let (origin, rest) = line.split_once(' ')?;
        let (release, address) = rest.split_once(' ')?;
        (origin == "Debian" && !release.contains("security")).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::main_archive;

    #[test]
    fn main_archive_is_neither_security_nor_a_third_party() {
        let targets = "Elsewhere stable http://a.invalid/\n\
                       Debian bookworm-security http://b.invalid/\n\
                       Debian bookworm http://c.invalid/\n";
        assert_eq!(main_archive(targets), Some("http://c.invalid/"));
    }

    #[test]
    fn no_package_lists_name_no_archive() {
        assert_eq!(main_archive(""), None);
    }
}
