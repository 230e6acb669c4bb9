//! Checks of the lines of documents: their width, and whether a wrap has split the comment of a command.

use super::texts;

/// The most columns of a line that is neither table nor code.
const COLUMNS: usize = 100;

/// The kind of a line in a document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Table,
    /// Code between backticks.
    Fence,
    /// Code that is indented by four spaces or more.
    Block,
}

/// The lines of a document, each with its number and kind.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, Kind)> {
    let (mut is_fenced, mut may_be_block) = (false, true);
    (1..).zip(text.lines()).map(move |(number, line)| {
        let is_mark = line.trim_start().starts_with("```");
        let kind = if is_fenced || is_mark {
            Kind::Fence
        } else if line.trim_start().starts_with('|') {
            Kind::Table
        } else if may_be_block && line.starts_with("    ") {
            Kind::Block
        } else {
            Kind::Text
        };
        is_fenced ^= is_mark;
        // Within a paragraph or an item, an indented line continues the text.
        may_be_block = kind == Kind::Block || line.trim().is_empty();
        (number, line, kind)
    })
}

/// Whether a line of code looks like the end of the comment in the line before it, which has no room for its first
/// word.
fn is_wrapped(before: &str, line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or_default();
    let columns = before.chars().count();
    before.contains(" # ")
        && !line.contains("# ")
        && columns <= COLUMNS
        && columns + 1 + word.chars().count() > COLUMNS
}

#[test]
fn line_of_text_has_at_most_100_columns() {
    let mut wide = Vec::new();
    for (name, text) in texts(&["md"]) {
        // The address of a link cannot be wrapped.
        let found = lines(&text).filter(|(_, line, kind)| {
            *kind == Kind::Text && line.chars().count() > COLUMNS && !line.contains("://")
        });
        wide.extend(found.map(|(number, ..)| format!("{name}:{number}")));
    }
    assert!(wide.is_empty(), "more than {COLUMNS} columns:\n{}", wide.join("\n"));
}

#[test]
fn comment_of_a_command_stays_in_its_line() {
    let mut wrapped = Vec::new();
    for (name, text) in texts(&["md"]) {
        let lines: Vec<(usize, &str, Kind)> = lines(&text).collect();
        for pair in lines.windows(2) {
            if let [(_, before, Kind::Block), (number, line, Kind::Block)] = pair
                && is_wrapped(before, line)
            {
                wrapped.push(format!("{name}:{number}: {line}"));
            }
        }
    }
    assert!(wrapped.is_empty(), "the end of a comment, as a command:\n{}", wrapped.join("\n"));
}

#[test]
fn wrap_within_a_comment_is_recognised() {
    let (before, short) = (format!("    command {}# a, b,", " ".repeat(80)), "    command # a");
    assert!(is_wrapped(&before, "    end of it"));
    assert!(!is_wrapped(&before, "    # end of it"));
    assert!(!is_wrapped(short, "    command"));
    let text = "text\n    text\n\n    code\n\n| row |\n```\n    code\n```\n";
    let blocks = lines(text).filter(|(.., kind)| *kind == Kind::Block);
    assert_eq!(blocks.map(|(number, ..)| number).collect::<Vec<usize>>(), [4]);
}
