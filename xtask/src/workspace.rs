//! Paths: the clone, and the cache outside of it that survives a fresh clone.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Returns the root of this clone.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_path_buf()
}

/// Returns cargo's target directory.
pub(crate) fn target() -> PathBuf {
    let directory = env::var_os("CARGO_TARGET_DIR").filter(|value| !value.is_empty());
    directory.map_or_else(|| root().join("target"), PathBuf::from)
}

/// Returns the directory for what is expensive to make and belongs to no single clone.
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

    use serde_json::Value;

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
    fn members_know_only_whom_they_may() {
        let all = dependencies();
        assert!(all["lb-common"].is_empty(), "the data path depends on {:?}", all["lb-common"]);
        for (name, may_know) in [
            ("lb-ebpf", &["lb-common"][..]),
            ("lb-control", &[]),
            ("lb-agent", &["lb-common", "lb-control"]),
            ("lb-tests", &["lb-agent", "lb-common"]),
            ("xtask", &[]),
        ] {
            let ours = all[name].iter().filter(|name| all.contains_key(*name));
            assert_eq!(ours.collect::<Vec<_>>(), may_know, "{name}");
        }
    }
}
