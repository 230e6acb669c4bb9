//! Packages of Debian's archive, found through apt's own configuration: the mirror is this machine's, never one of
//! ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::shell;

/// The keyring that signs every Debian suite; it is installed on every Debian machine.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Refreshes apt's package lists.
pub(crate) fn refresh() -> Result<()> {
    shell::run(
        Command::new("apt-get").args(["update", "-qq"]),
        "check the sources that apt is configured with, then run this command again",
    )
}

/// Downloads `package` of exactly `version` from `suite` into `directory`; returns the path of the file.
pub(crate) fn download(
    package: &str,
    version: &str,
    suite: &str,
    directory: &Path,
) -> Result<PathBuf> {
    Archive::open(suite, directory)?.download(&format!("{package}={version}*"))
}

/// A suite of Debian's archive, which need not be configured on this machine: source list, package lists and cache are
/// in a directory of their own, so that the machine's apt configuration does not change.
pub(crate) struct Archive {
    directory: PathBuf,
    suite: String,
}

impl Archive {
    /// Fetches the package lists of `suite` into `directory`, which must exist.
    pub(crate) fn open(suite: &str, directory: &Path) -> Result<Self> {
        let archive = Self { directory: directory.to_owned(), suite: suite.to_owned() };
        let mirror = mirror()?;
        let source_list = archive.source_list();
        fs::write(&source_list, format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))
            .with_context(|| format!("source list {}", source_list.display()))?;
        for private in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(directory.join(private))
                .with_context(|| format!("directory {}/{private}", directory.display()))?;
        }
        shell::run(archive.apt("apt-get").arg("update"), &archive.remedy("its package lists"))?;
        Ok(archive)
    }

    /// The names of the packages that match a regular expression, in version order.
    pub(crate) fn names(&self, expression: &str) -> Result<Vec<String>> {
        let mut search = self.apt("apt-cache");
        search.args(["search", "--names-only", expression]);
        let found = shell::output(&mut search, "apt-get install apt")?;
        let names = found.lines().filter_map(|line| line.split_whitespace().next());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort_by_key(|name| numbers(name));
        Ok(names)
    }

    /// Downloads a package by the name that apt uses, and returns the path of the file.
    pub(crate) fn download(&self, package: &str) -> Result<PathBuf> {
        let remedy = self.remedy(package);
        shell::run(self.apt("apt-get").args(["download", package]), &remedy)?;
        let name = package.split('=').next().unwrap_or(package);
        fs::read_dir(&self.directory)?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .find(|file| {
                let of_package = |it: &str| it.starts_with(&format!("{name}_"));
                file.file_name().and_then(|it| it.to_str()).is_some_and(of_package)
            })
            .with_context(|| {
                format!("no package file in {}\nremedy: {remedy}", self.directory.display())
            })
    }

    fn source_list(&self) -> PathBuf {
        self.directory.join("sources.list")
    }

    fn remedy(&self, what: &str) -> String {
        format!("provide {what} by other means: {} does not hold it", self.suite)
    }

    fn apt(&self, tool: &str) -> Command {
        let mut apt = Command::new(tool);
        apt.current_dir(&self.directory)
            .arg("-qq")
            .arg("-oDir::Etc::SourceParts=/dev/null")
            .arg("-oAPT::Sandbox::User=root")
            .arg(format!("-oDir::Etc::SourceList={}", self.source_list().display()))
            .arg(format!("-oDir::State::Lists={}", self.directory.join("lists").display()))
            .arg(format!("-oDir::Cache={}", self.directory.join("cache").display()));
        apt
    }
}

/// The numbers in a name, in order.
fn numbers(name: &str) -> Vec<u32> {
    name.split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// Returns the mirror that apt is configured with for Debian's main archive.
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
    // Without package lists apt names no source, so they are fetched once.
    refresh()?;
    configured()?.context("apt has no source of Debian's main archive\nremedy: configure one")
}

/// Picks the main archive from lines of `origin release address`.
fn main_archive(targets: &str) -> Option<&str> {
    targets.lines().find_map(|line| {
        let (origin, rest) = line.split_once(' ')?;
        let (release, address) = rest.split_once(' ')?;
        (origin == "Debian" && !release.contains("security")).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::{main_archive, numbers};

    #[test]
    fn main_archive_is_neither_security_nor_a_third_party() {
        let targets = "Elsewhere stable http://a.invalid/\n\
                       Debian bookworm-security http://b.invalid/\n\
                       Debian bookworm http://c.invalid/\n";
        assert_eq!(main_archive(targets), Some("http://c.invalid/"));
    }

    #[test]
    fn names_are_ordered_by_their_numbers() {
        assert!(numbers("linux-image-6.1.0-9-cloud") < numbers("linux-image-6.1.0-47-cloud"));
    }

    #[test]
    fn no_package_lists_name_no_archive() {
        assert_eq!(main_archive(""), None);
    }
}
