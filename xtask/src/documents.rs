//! Checks of the documents against the tree: the tests, files, decisions and functions that they name, and the use of
//! `unsafe`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::root;

mod lines;

/// Directories with files written by people.
const DIRECTORIES: [&str; 6] = ["docs", "lb-agent", "lb-common", "lb-ebpf", "tests", "xtask"];

/// All files below a directory with one of these extensions.
pub(crate) fn below(directory: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        // A linked directory (`tests/control-plane/bin`) does not belong to the repository.
        if path.is_symlink() {
        } else if path.is_dir() {
            found.extend(below(&path, endings));
        } else if endings.contains(&ending) {
            found.push(path);
        }
    }
    found
}

/// The texts by path: documents of the root, and files of all these directories.
fn texts(endings: &[&str]) -> Vec<(String, String)> {
    let mut all: Vec<PathBuf> =
        DIRECTORIES.iter().flat_map(|directory| below(&root().join(directory), endings)).collect();
    let at_root = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    all.extend(at_root.filter(|path| path.extension().is_some_and(|it| it == "md")));
    let name = |path: &Path| path.strip_prefix(root()).unwrap().display().to_string();
    all.into_iter().map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect()
}

/// The texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The words that follow a given word, without punctuation.
fn after<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let of = |rest: &'a str| rest.split_whitespace().next().unwrap_or_default();
    let pieces = text.split(word).skip(1).filter(|rest| rest.starts_with(' ')).map(of);
    pieces.map(|word| word.trim_matches(|letter: char| !letter.is_ascii_digit()))
}

#[test]
fn each_feature_in_proofs_names_a_test_that_exists() {
    let text = fs::read_to_string(root().join("docs/proofs.md")).unwrap();
    let table = text.split("| feature | proven by |").nth(1).expect("the table of features");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let rows: Vec<(&str, &str)> =
        rows.map(|row| row.trim_end_matches(" |").rsplit_once(" | ").expect("two cells")).collect();
    assert!(rows.len() > 40, "only {} features: is the table still one?", rows.len());
    for (feature, proofs) in rows {
        let mut proofs = quoted(proofs).filter(|proof| !proof.starts_with("docs/")).peekable();
        assert!(proofs.peek().is_some(), "nothing proves: {feature}");
        for proof in proofs {
            let exists =
                root().join(proof).exists() || root().join("tests/tests").join(proof).exists();
            assert!(exists || proof.starts_with("cargo "), "no such test: {proof}, for: {feature}");
        }
    }
}

#[test]
fn files_that_documents_name_exist() {
    let mut missing = Vec::new();
    for (name, text) in texts(&["md"]) {
        let directory = root().join(&name).parent().unwrap().to_path_buf();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let links = links.filter(|link| !link.contains("://") && !link.starts_with('#'));
        let links = links.map(|link| link.split('#').next().unwrap_or_default());
        // A text counts as a path if it begins with a directory of the repository. Patterns and texts with a variable
        // part do not.
        let is_path = |words: &&str| {
            let first = words.split_once('/').map(|(first, _)| first);
            first.is_some_and(|first| first == "deploy" || DIRECTORIES.contains(&first))
                && !words.contains(['*', ' ', '<', '{', ':'])
        };
        for path in links.chain(quoted(&text).filter(is_path)) {
            let is_there = |path: &str| root().join(path).exists() || directory.join(path).exists();
            let is_module = || is_there(&format!("{path}.rs"));
            // Benchmarks create this directory.
            let is_made = path.starts_with("tests/control-plane/bin");
            if !is_there(path) && !is_module() && !is_made {
                missing.push(format!("{name}: {path}"));
            }
        }
    }
    assert!(missing.is_empty(), "no such file:\n{}", missing.join("\n"));
}

/// Whether code defines a function.
fn defines(code: &str, function: &str) -> bool {
    ["(", "<"].iter().any(|end| code.contains(&format!("fn {function}{end}")))
}

/// Whether code calls a function, or imports it for another module to call.
fn calls(code: &str, function: &str) -> bool {
    code.match_indices(function).any(|(at, _)| {
        let (before, rest) = (&code[..at], &code[at + function.len()..]);
        let is_name = !before.ends_with(|it: char| it.is_alphanumeric() || it == '_');
        let is_used = ["(", "::<", ";", " as "].iter().any(|end| rest.starts_with(end));
        is_name && is_used && !before.ends_with("fn ")
    })
}

/// Each `file::function` must be called by an entry point, or in the file of a function that the list names before it.
#[test]
fn functions_in_the_lists_of_architecture_call_each_other() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let forward = "lb-common/src/forward";
    let modules = fs::read_dir(root().join(forward)).unwrap().flatten();
    let modules = modules.filter(|entry| entry.path().is_dir());
    let modules = modules.map(|module| format!("{forward}/{}", module.file_name().display()));
    let roots = [forward, "lb-common/src", "lb-ebpf/src"].map(str::to_owned);
    let path: Vec<String> = roots.into_iter().chain(modules).collect();
    let mut found = 0;
    for (heading, roots, entries) in [
        ("The path of a packet", &path[..], "forward forward/parts programs kernel"),
        ("The path of a Service", &["lb-agent/src".to_owned()][..], "run"),
        ("The path of a setting", &["lb-agent/src".to_owned()][..], "config run"),
    ] {
        let code = |file: &str| {
            let file = format!("{file}.rs");
            let files = roots.iter().map(|directory| root().join(directory).join(&file));
            files.filter_map(|file| fs::read_to_string(file).ok()).collect::<Vec<String>>()
        };
        let section = text.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
        for list in section.split("\n### ") {
            let mut known: String = entries.split(' ').flat_map(code).collect();
            for (file, function) in quoted(list).filter_map(|name| name.rsplit_once("::")) {
                if file.starts_with(char::is_uppercase) {
                    continue;
                }
                let files = code(file).into_iter().filter(|code| defines(code, function));
                let defined = files.collect::<String>();
                assert!(!defined.is_empty(), "ARCHITECTURE.md: no function {file}::{function}");
                known += &defined;
                assert!(calls(&known, function), "ARCHITECTURE.md: no call of {file}::{function}");
                found += 1;
            }
        }
    }
    assert!(found >= 90, "only {found} functions are named");
}

/// Each part must name the function that it has in the code, and parts must be in the order of the path.
#[test]
fn parts_in_the_lists_of_architecture_are_in_order() {
    let code = |file: &str| {
        let file = root().join("lb-common/src/forward").join(file);
        fs::read_to_string(file).unwrap()
    };
    // The last of two files with as many of the parts counts: the stages of host packets repeat some of `ingress`.
    let (parts, paths) = (code("parts.rs"), ["egress.rs", "ingress.rs"].map(code));
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for list in text.split("\n### ").filter(|list| list.contains("`Part::")) {
        let names: Vec<&str> = quoted(list).collect();
        let mut places = [Vec::new(), Vec::new()];
        for (part, next) in names.iter().zip(&names[1..]) {
            let Some(name) = part.strip_prefix("Part::") else { continue };
            let function = parts.split(&format!(" {name} => ")).nth(1).expect(part);
            let function = function.split(';').next().unwrap();
            assert!(function == *next || !function.contains("::"), "{part} is {function}");
            for (path, places) in paths.iter().zip(&mut places) {
                places.extend(path.find(part));
            }
        }
        let path = places.iter().max_by_key(|places| places.len()).unwrap();
        assert!(path.is_sorted() && path.len() > 1, "parts are in another order: {list}");
    }
}

#[test]
fn decisions_and_sections_that_are_cited_exist() {
    let files = below(&root().join("docs/adr"), &["md"]);
    let decisions: BTreeSet<String> = files
        .iter()
        .filter_map(|file| Some(file.file_name()?.to_str()?.get(..4)?.to_owned()))
        .collect();
    let contract = fs::read_to_string(root().join("docs/contract.md")).unwrap();
    let headings = contract.lines().filter(|line| line.starts_with("##"));
    let sections: BTreeSet<&str> = headings
        .filter_map(|line| line.trim_start_matches('#').split_whitespace().next())
        .collect();
    let mut unknown = Vec::new();
    for (name, text) in texts(&["md", "rs"]) {
        let decisions_cited = after(&text, "ADR").filter(|number| number.len() == 4);
        for number in decisions_cited.filter(|number| !decisions.contains(*number)) {
            unknown.push(format!("{name}: ADR {number}"));
        }
        let cited = after(&text, "contract").filter(|number| !number.is_empty());
        for section in cited.filter(|section| !sections.contains(section)) {
            unknown.push(format!("{name}: contract {section}"));
        }
    }
    assert!(unknown.is_empty(), "cited, and not in docs/adr or docs/contract.md:\n{unknown:#?}");
}

#[test]
fn reasons_and_events_are_documented_for_operators() {
    let events = fs::read_to_string(root().join("lb-common/src/event.rs")).unwrap();
    let metrics = fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    for (kinds, heading) in [
        (&["DropReason"][..], "Reasons of drops"),
        (&["PassReason", "Translation", "Return", "Redirect"][..], "Reasons of other verdicts"),
        (&["Event"][..], "Events on the way"),
    ] {
        let names = kinds.iter().flat_map(|kind| {
            let start = format!("\n    {kind} {{\n");
            let names = events.split(&start).nth(1).unwrap().split("\n    }").next().unwrap();
            names.lines().filter_map(|line| line.split('"').nth(1))
        });
        let section = metrics.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let (names, rows): (BTreeSet<&str>, BTreeSet<&str>) = (names.collect(), rows.collect());
        assert!(names.len() > 10, "{heading}: only {names:?}");
        assert_eq!(rows, names, "docs/metrics.md, {heading}, against lb-common/src/event.rs");
    }
}

#[test]
fn unsafe_code_of_the_agent_is_where_adr_0004_says() {
    let agent = root().join("lb-agent/src");
    let lifted = below(&agent, &["rs"]).into_iter().filter(|file| {
        let text = fs::read_to_string(file).unwrap();
        text.contains("expect(unsafe_code") || text.contains("allow(unsafe_code")
    });
    let mut lifted: Vec<String> =
        lifted.map(|file| file.strip_prefix(&agent).unwrap().display().to_string()).collect();
    lifted.sort();
    // `lib.rs` lifts the lint for the directory `syscall`.
    assert_eq!(lifted, ["lib.rs", "maps/raw.rs"], "and nowhere else: ADR 0004");
    let library = fs::read_to_string(agent.join("lib.rs")).unwrap();
    assert!(library.contains("#![deny(unsafe_code)]"), "lb-agent denies unsafe code");
    assert_eq!(library.matches("expect(unsafe_code").count(), 1, "for `syscall` alone");
    let common = fs::read_to_string(root().join("lb-common/src/lib.rs")).unwrap();
    assert!(common.contains("#![forbid(unsafe_code)]"), "lb-common forbids unsafe code");
}
