//! Holds the modules of the data path, the agent and the control plane to the order that each `lib.rs` lists: a module
//! uses only those before it.

use std::collections::BTreeSet;
use std::fs;

use crate::documents::below;
use crate::workspace::root;

/// The modules in their order.
fn listed(library: &str) -> Vec<&str> {
    let rows = library.lines().filter_map(|line| line.strip_prefix("//! - `"));
    rows.filter_map(|row| row.split('`').next()).collect()
}

/// The modules that a file declares.
fn declared(library: &str) -> BTreeSet<&str> {
    let lines = library.lines().map(|line| line.trim_start_matches("pub "));
    lines.filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect()
}

/// The part of a file that is no comment and no test. Tests may call what users call.
fn production(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The word at the beginning of a text.
fn word(text: &str) -> &str {
    let is_end = |letter: char| !letter.is_alphanumeric() && letter != '_';
    text.trim_start().split(is_end).next().unwrap_or_default()
}

/// The names that follow `crate::`, one or several in braces.
fn used(code: &str) -> Vec<&str> {
    code.split("crate::").skip(1).flat_map(names).collect()
}

fn names(rest: &str) -> Vec<&str> {
    let Some(group) = rest.strip_prefix('{') else { return vec![word(rest)] };
    let mut depth = 0_i32;
    let is_comma = |letter: char| {
        depth += match letter {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        letter == ',' && depth == 0
    };
    let end = group.find(';').unwrap_or(group.len());
    group[..end].split(is_comma).map(word).filter(|name| !name.is_empty()).collect()
}

#[test]
fn names_are_found_alone_and_in_braces() {
    let code =
        "use crate::maps;\nuse crate::{run::{self, Error}, show};\nlet it = crate::chain(&it);";
    assert_eq!(used(code), ["maps", "run", "show", "chain"]);
    let tested =
        "use crate::maps;\n// crate::run\n#[cfg(test)]\nmod tests {\n    use crate::show;\n}";
    assert_eq!(used(&production(tested)), ["maps"]);
}

#[test]
fn modules_use_only_those_listed_before_them() {
    for sources in ["lb-common/src", "lb-agent/src", "lb-agent/control/src"] {
        check(sources);
    }
}

/// Checks the modules of a library.
fn check(sources: &str) {
    let directory = root().join(sources);
    let library = fs::read_to_string(directory.join("lib.rs")).unwrap();
    let order = listed(&library);
    let all: BTreeSet<&str> = order.iter().copied().collect();
    assert_eq!(all, declared(&library), "{sources}: listed at the head of lib.rs, and declared");
    let place = |module: &str| order.iter().position(|listed| *listed == module);
    let mut upward = Vec::new();
    for file in below(&directory, &["rs"]) {
        let path = file.strip_prefix(&directory).unwrap().display().to_string();
        let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
        // `main.rs` and its modules use the library as a whole.
        let Some(own) = place(word(&path)).filter(|_| !is_test) else { continue };
        let code = production(&fs::read_to_string(&file).unwrap());
        let above = used(&code).into_iter().filter(|used| place(used).is_some_and(|it| it > own));
        upward.extend(above.map(|used| format!("{path} uses {used}")));
    }
    assert!(upward.is_empty(), "against the order in {sources}/lib.rs:\n{}", upward.join("\n"));
}
