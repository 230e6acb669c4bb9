//! Holds the modules of the data path, of the path of a packet, of the agent and of the control plane to the order that
//! the head of their file lists: a module uses only those before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::documents::below;
use crate::workspace::root;

/// The files whose heads list modules, and the beginning of the paths of these modules.
const HEADS: [(&str, &str); 4] = [
    ("lb-common/src/lib.rs", "crate::"),
    ("lb-common/src/forward.rs", "crate::forward::"),
    ("lb-agent/src/lib.rs", "crate::"),
    ("lb-agent/control/src/lib.rs", "crate::"),
];

/// The modules in their order.
fn listed(head: &str) -> Vec<&str> {
    let rows = head.lines().filter_map(|line| line.strip_prefix("//! - `"));
    rows.filter_map(|row| row.split('`').next()).collect()
}

/// The modules that a file declares, without its tests.
fn declared(head: &str) -> BTreeSet<&str> {
    let lines = head.lines().map(|line| line.trim_start_matches("pub "));
    let modules = lines.filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    modules.filter(|module| *module != "tests").collect()
}

/// The names that a file hands on, each with its module.
fn handed_on(code: &str) -> BTreeMap<&str, &str> {
    let starts = ["\nuse ", "\npub use "].into_iter();
    let paths = starts.flat_map(|start| code.split(start).skip(1));
    paths.filter_map(|rest| rest.split(';').next()).flat_map(imported).collect()
}

/// The names at the end of the path of an import, each with the module at its beginning.
fn imported(path: &str) -> impl Iterator<Item = (&str, &str)> {
    let last = path.rsplit("::").next().unwrap_or_default();
    names(last).into_iter().map(move |name| (name, word(path)))
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

/// The names that follow a prefix such as `crate::`, one or several in braces.
fn used<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    code.split(prefix).skip(1).flat_map(names).collect()
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
    assert_eq!(used(code, "crate::"), ["maps", "run", "show", "chain"]);
    let tested =
        "use crate::maps;\n// crate::run\n#[cfg(test)]\nmod tests {\n    use crate::show;\n}";
    assert_eq!(used(&production(tested), "crate::"), ["maps"]);
    let within =
        "use crate::forward::exit::{self, rewrite};\nuse crate::forward::{Scratch, begin};";
    assert_eq!(used(within, "crate::forward::"), ["exit", "Scratch", "begin"]);
}

#[test]
fn names_that_are_handed_on_belong_to_their_module() {
    let head = "mod step;\nuse step::ready;\npub use scratch::begin::{Begin, Pair};\nuse a::b::C;";
    let expected = [("Begin", "scratch"), ("C", "a"), ("Pair", "scratch"), ("ready", "step")];
    assert_eq!(handed_on(head), BTreeMap::from(expected));
}

#[test]
fn modules_use_only_those_listed_before_them() {
    for (head, prefix) in HEADS {
        check(head, prefix);
    }
}

/// Checks the modules that the head of a file lists.
fn check(head: &str, prefix: &str) {
    let text = fs::read_to_string(root().join(head)).unwrap();
    let order = listed(&text);
    let all: BTreeSet<&str> = order.iter().copied().collect();
    assert_eq!(all, declared(&text), "{head}: listed at its head, and declared");
    let code = production(&text);
    let handed_on = handed_on(&code);
    let place = |name: &str| {
        let module = handed_on.get(name).copied().unwrap_or(name);
        order.iter().position(|listed| *listed == module)
    };
    let directory = root().join(head.trim_end_matches(".rs").trim_end_matches("/lib"));
    let mut upward = Vec::new();
    for file in below(&directory, &["rs"]) {
        let path = file.strip_prefix(&directory).unwrap().display().to_string();
        let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
        // `main.rs` and its modules use the library as a whole.
        let Some(own) = place(word(&path)).filter(|_| !is_test) else { continue };
        let code = production(&fs::read_to_string(&file).unwrap());
        let uses = used(&code, prefix).into_iter();
        let above = uses.filter(|used| place(used).is_some_and(|it| it > own));
        upward.extend(above.map(|used| format!("{path} uses {used}")));
    }
    assert!(upward.is_empty(), "against the order in {head}:\n{}", upward.join("\n"));
}
