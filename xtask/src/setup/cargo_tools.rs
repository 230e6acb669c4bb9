//! Tools that come as crates, compiled by `cargo install` at a known version.

use std::process::Command;

use anyhow::Result;

use crate::shell;
use crate::step::{present, step};

/// A tool, the version we install, and the oldest one that we accept when it is there already.
pub(crate) struct CargoTool {
    name: &'static str,
    version: &'static str,
    oldest: (u32, u32, u32),
    expected: &'static str,
}

/// Links the eBPF object. 0.10.3 uses the LLVM inside of rustc 1.95, so it needs no LLVM packages.
pub(crate) const BPF_LINKER: CargoTool =
    CargoTool { name: "bpf-linker", version: "0.10.3", oldest: (0, 10, 1), expected: "2 to 4 min" };

/// Judges dependencies: licences, sources, duplicates.
pub(crate) const CARGO_DENY: CargoTool =
    CargoTool { name: "cargo-deny", version: "0.20.2", oldest: (0, 18, 0), expected: "2 to 4 min" };

/// Changes code in small ways and asks whether tests notice (`cargo xtask mutants`).
pub(crate) const CARGO_MUTANTS: CargoTool = CargoTool {
    name: "cargo-mutants",
    version: "27.1.0",
    oldest: (26, 0, 0),
    expected: "3 to 5 min",
};

/// Installs `tool` unless it is there in a version that will do.
pub(crate) fn ensure(tool: &CargoTool) -> Result<()> {
    if let Some(installed) = installed(tool).filter(|version| *version >= tool.oldest) {
        let (major, minor, patch) = installed;
        present(format!("{} {major}.{minor}.{patch}", tool.name));
        return Ok(());
    }
    let CargoTool { name, version, expected, .. } = tool;
    step(format!("{name} {version} by cargo install"), expected, || {
        shell::run(
            shell::cargo().args(["install", "--quiet", "--locked", name, "--version", version]),
            &format!("cargo install --locked {name} --version {version}"),
        )
    })
}

fn installed(tool: &CargoTool) -> Option<(u32, u32, u32)> {
    let file = shell::find(tool.name)?;
    // Some subcommands of cargo answer only under their own name.
    let name = tool.name.trim_start_matches("cargo-");
    [&["--version"][..], &[name, "--version"]].into_iter().find_map(|arguments| {
        version_in(&shell::output(Command::new(&file).args(arguments), "").ok()?)
    })
}

/// Reads the version out of a line such as `bpf-linker 0.10.3`.
fn version_in(line: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = line.split_whitespace().nth(1)?.splitn(3, '.');
    let mut number = || -> Option<u32> {
        let text = numbers.next()?;
        text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    Some((number()?, number()?, number()?))
}

#[cfg(test)]
mod tests {
    use super::version_in;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version_in("bpf-linker 0.10.3\n"), Some((0, 10, 3)));
        assert!(version_in("bpf-linker 0.9.15") < version_in("bpf-linker 0.10.1"));
    }

    #[test]
    fn pre_release_counts_as_its_release() {
        assert_eq!(version_in("cargo-deny 0.20.2-rc.1"), Some((0, 20, 2)));
    }

    #[test]
    fn line_without_a_version_has_none() {
        assert_eq!(version_in("usage: bpf-linker"), None);
    }
}
