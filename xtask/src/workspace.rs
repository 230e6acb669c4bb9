//! Paths: the clone, and the cache outside of it that survives a fresh clone.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Selects every package but the benchmarks, which neither root tests nor the programs that they start need.
/// Dependencies have the same features with and without the benchmarks, so none is built twice (ADR 0036).
pub(crate) const ALL_BUT_BENCH: [&str; 3] = ["--workspace", "--exclude", "lb-bench"];

/// Returns the root of this clone.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// Returns cargo's target directory.
pub(crate) fn target() -> PathBuf {
    let directory = env::var_os("CARGO_TARGET_DIR").filter(|value| !value.is_empty());
    // Cargo is always run in the root, whatever the working directory of this process is.
    root().join(directory.map_or_else(|| "target".into(), PathBuf::from))
}

/// Returns the cache directory for results that are expensive to build and that clones share.
pub(crate) fn cache() -> Result<PathBuf> {
    let base = match env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty()) {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(
            env::var_os("HOME")
                .context("neither XDG_CACHE_HOME nor HOME is set: set one of them")?,
        )
        .join(".cache"),
    };
    Ok(base.join("lb-agent"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::process::{self, Command};

    use serde_json::Value;

    use super::root;
    use crate::shell;

    /// The dependencies of each member by its manifest, without those that only its tests need.
    fn dependencies() -> BTreeMap<String, Vec<String>> {
        let mut cargo = shell::cargo();
        cargo.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
        let metadata: Value =
            serde_json::from_str(&shell::output(&mut cargo, "").unwrap()).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let of = |package: &Value| {
            let all = package["dependencies"].as_array().unwrap().iter();
            let needed = all.filter(|dependency| dependency["kind"] != "dev");
            (text(&package["name"]), needed.map(|dependency| text(&dependency["name"])).collect())
        };
        metadata["packages"].as_array().unwrap().iter().map(of).collect()
    }

    #[test]
    fn members_depend_only_on_listed_members() {
        let all = dependencies();
        assert!(all["lb-common"].is_empty(), "the data path depends on {:?}", all["lb-common"]);
        for (name, may_know) in [
            ("lb-ebpf", &["lb-common"][..]),
            ("lb-control", &[]),
            ("lb-agent", &["lb-common", "lb-control"]),
            ("lb-tests", &["lb-agent", "lb-common"]),
            ("lb-bench", &["lb-agent", "lb-common", "lb-tests"]),
            ("xtask", &[]),
        ] {
            let ours = all[name].iter().filter(|name| all.contains_key(*name));
            assert_eq!(ours.collect::<Vec<_>>(), may_know, "{name}");
        }
    }

    /// Our packages have names by which `.ci/forget` recognises them, and no dependency has such a name.
    #[test]
    fn packages_of_the_workspace_are_recognised_by_name() {
        let members = dependencies();
        let is_ours = |name: &str| name == "xtask" || name.starts_with("lb-");
        assert!(members.keys().all(|name| is_ours(name)), "{:?}", members.keys());
        let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
        let names = lock.lines().filter_map(|line| line.strip_prefix("name = \""));
        let mut names = names.map(|name| name.trim_end_matches('"')).peekable();
        assert!(names.peek().is_some(), "no names in the lock file");
        let strangers: Vec<&str> =
            names.filter(|name| is_ours(name) && !members.contains_key(*name)).collect();
        assert!(strangers.is_empty(), "{strangers:?}");
    }

    #[test]
    fn cache_keeps_dependencies_and_loses_workspace_crates() {
        let directory = root().join(format!("target/tmp/forget-{}", process::id()));
        let kept = [
            "debug/.fingerprint/serde-1/lib-serde",
            "debug/build/ring-1/out/libring.a",
            "debug/deps/libserde-1.rlib",
            "debug/deps/libserde_derive-1.so",
            "aarch64-unknown-linux-gnu/debug/deps/libstd-1.rmeta",
        ];
        let removed = [
            "debug/.fingerprint/lb-agent-1/lib-lb_agent",
            "debug/.fingerprint/xtask-1/bin-xtask",
            "debug/build/lb-agent-1/out/lb-ebpf",
            "debug/deps/liblb_agent-1.rlib",
            "debug/deps/lb_test_peer-1",
            "debug/deps/topology_agent-1",
            "debug/incremental/topology_agent-1/s-1",
            "debug/lb-agent",
            "debug/liblb_tests.rlib",
            "debug/xtask",
            "aarch64-unknown-linux-gnu/debug/deps/liblb_common-1.rmeta",
            "image/debug/lb-agent-0.1.0.tar",
        ];
        for file in kept.iter().chain(&removed) {
            let file = directory.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        shell::run(Command::new(root().join(".ci/forget")).arg(&directory), "").unwrap();
        let is_there = |file: &&&str| directory.join(file).exists();
        assert_eq!(kept.iter().filter(|file| !is_there(file)).collect::<Vec<_>>(), [&""; 0]);
        assert_eq!(removed.iter().filter(is_there).collect::<Vec<_>>(), [&""; 0]);
        fs::remove_dir_all(directory).unwrap();
    }
}
