//! Checks the table of maps in `docs/concepts.md` against the list.

use lb_common::maps::{Author, Content};

use super::shape::{MapShape, SHAPES, kind};

const DOCUMENT: &str = include_str!("../../../docs/concepts.md");

/// Formats a number with a comma before each group of three digits.
fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

fn row(shape: &MapShape) -> String {
    let MapShape { name, holds, .. } = shape;
    let entries = match shape.content {
        Content::Desired | Content::Memory | Content::Flows => grouped(shape.entries),
        Content::Filter | Content::State | Content::Fixed | Content::Counters => "fixed".to_owned(),
    };
    let author = match shape.author {
        Author::Agent => "agent",
        Author::Programs => "programs",
    };
    format!("| `{name}` | {holds} | {} | {author} | {entries} |", kind(shape.kind))
}

#[test]
fn the_document_names_every_map() {
    let rows: Vec<String> = SHAPES.iter().map(row).collect();
    let table = DOCUMENT.split_once("| map |").map_or("", |(_, rest)| rest);
    let written: Vec<&str> = table.lines().skip(2).take_while(|line| !line.is_empty()).collect();
    assert_eq!(written, rows, "docs/concepts.md: the table of maps is to be\n{}", rows.join("\n"));
}
