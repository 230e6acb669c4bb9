//! Charts of `bench scale`: memory, start and changes over the size of the cluster.

use super::super::results::Row;
use super::charts::{self, Entry};
use super::figure;
use super::pick::{class, rows};
use super::svg::number;

/// The measures of `bench scale`, one chart each.
const MEASURES: [&str; 7] = [
    "anonymous memory",
    "peak memory",
    "map memory",
    "lists to programmed",
    "change to map 50 %",
    "change to map 99 %",
    "growth",
];

pub(super) fn pictures(all: &[Row]) -> String {
    let figures: String = MEASURES.iter().map(|measure| picture(all, measure)).collect();
    format!("<div class=\"grid\">{figures}</div>")
}

fn picture(all: &[Row], measure: &str) -> String {
    let entry = |row: &Row| Entry {
        name: format!("{} x {}", row.label("services"), row.label("endpoints")),
        class: class("ours").to_owned(),
        values: vec![row.spread],
        said: number(row.spread.median),
    };
    let entries: Vec<Entry> = rows(all, &[], measure).map(entry).collect();
    let unit = rows(all, &[], measure).next().map_or("", |row| row.unit.as_str());
    if entries.is_empty() {
        return String::new();
    }
    figure(
        measure,
        &format!("{unit}, services x endpoints"),
        &charts::bars(measure, &entries, None),
    )
}
