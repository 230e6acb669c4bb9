//! The programs that cargo builds from the files of root tests.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{shell, workspace};

/// The built program of a test file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    /// The name of the file, as `cargo test --test` takes it.
    pub(crate) name: String,
    /// The path of the program.
    pub(crate) program: PathBuf,
    /// The directory of its package, in which cargo would run it.
    pub(crate) directory: PathBuf,
}

/// Builds the programs that root tests start, and files of root tests.
pub(crate) fn build(names: &[&str]) -> Result<()> {
    shell::build(&[selection(names), vec!["--bins"]].concat())
}

/// Returns the arguments of cargo that select files of root tests.
pub(crate) fn selection<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let names = names.iter().flat_map(|name| ["--test", name]);
    workspace::ALL_BUT_BENCH.into_iter().chain(names).collect()
}

/// Builds test files with root, `*` for all, and returns them sorted by name.
pub(crate) fn built(names: &[&str]) -> Result<Vec<Binary>> {
    let mut cargo = shell::cargo();
    cargo
        .args(["test", "--no-run", "--quiet"])
        .args(selection(names))
        .args(["--message-format", "json-render-diagnostics"]);
    let mut binaries = parse(&shell::output(&mut cargo, "fix what cargo reports")?)?;
    ensure!(
        !binaries.is_empty(),
        "cargo names no file of root tests: have they moved from tests/tests?"
    );
    binaries.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(binaries)
}

/// Returns the path of another binary of the workspace, which was built beside a test program.
pub(crate) fn sibling(binary: &Binary, name: &str) -> PathBuf {
    let deps = binary.program.parent().and_then(Path::parent).unwrap_or_else(|| Path::new("/"));
    deps.join(name)
}

/// Parses cargo's messages, one on each line, and returns the artifacts that are test programs.
fn parse(messages: &str) -> Result<Vec<Binary>> {
    let messages = messages.lines().map(|line| {
        serde_json::from_str::<Value>(line).with_context(|| format!("message of cargo: {line}"))
    });
    let binaries = messages.map(|message| message.map(|message| binary(&message)));
    binaries.filter_map(Result::transpose).collect()
}

fn binary(message: &Value) -> Option<Binary> {
    let target = message.get("target")?;
    let is_tests = target.get("kind")?.as_array()?.iter().any(|kind| kind == "test");
    let program = message.get("executable")?.as_str().filter(|_| is_tests)?;
    let directory = Path::new(message.get("manifest_path")?.as_str()?).parent()?;
    let name = target.get("name")?.as_str()?.to_owned();
    Some(Binary { name, program: program.into(), directory: directory.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_binaries_are_taken_from_cargo_messages() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/c/tests/Cargo.toml","target":{"kind":["bin"],"name":"peer"},"executable":"/t/peer"}
{"reason":"compiler-artifact","manifest_path":"/c/lb/Cargo.toml","target":{"kind":["lib"],"name":"lb"},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/c/tests/Cargo.toml","target":{"kind":["test"],"name":"prog_run"},"executable":"/t/prog_run-1"}
{"reason":"build-finished","success":true}
"#;
        let expected = Binary {
            name: "prog_run".to_owned(),
            program: "/t/prog_run-1".into(),
            directory: "/c/tests".into(),
        };
        assert_eq!(parse(messages).unwrap(), [expected]);
        assert!(parse("warning: no JSON").is_err());
    }
}
