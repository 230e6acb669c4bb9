//! Charts of `bench packet`: nanoseconds per packet of our programs and of the reference programs.

use super::super::results::Row;
use super::charts::{self, Entry};
use super::figure;
use super::pick::{rows, values};
use super::svg::{escape, number};

/// All charts: one for each case and number of flows, in each family and transport.
pub(super) fn pictures(all: &[Row]) -> String {
    let mut text = String::new();
    for family in values(all, "family") {
        for transport in values(all, "transport") {
            let figures = kind(all, family, transport);
            let head = escape(&format!("{family} {transport}"));
            text.extend([format!("<h3>{head}</h3><div class=\"grid\">{figures}</div>")]);
        }
    }
    text
}

fn kind(all: &[Row], family: &str, transport: &str) -> String {
    let mut text = String::new();
    for case in values(all, "case") {
        for flows in values(all, "flows") {
            let labels =
                [("family", family), ("transport", transport), ("case", case), ("flows", flows)];
            let entries: Vec<Entry> =
                rows(all, &labels, "time").map(|row| entry(all, row)).collect();
            if !entries.is_empty() {
                let title =
                    if flows == "0" { case.to_owned() } else { format!("{case}, {flows} flows") };
                let drawing = charts::bars(&title, &entries, None);
                text.push_str(&figure(&title, "ns a packet; x the reference", &drawing));
            }
        }
    }
    text
}

fn entry(all: &[Row], row: &Row) -> Entry {
    let program = row.label("program");
    let ratio = all
        .iter()
        .find(|other| other.measure.starts_with("ratio to ") && other.labels == row.labels);
    let ratio = ratio.map_or_else(String::new, |ratio| format!("  {:.2}x", ratio.spread.median));
    let class = match (ratio.is_empty(), row.label("hook")) {
        (true, _) => "plain",
        (false, "xdp") => "xdp",
        (false, _) => "ours",
    };
    let said = number(row.spread.median) + &ratio;
    Entry { name: program.to_owned(), class: class.to_owned(), values: vec![row.spread], said }
}
