//! The choice of rows for a chart, and the texts that every chart has for a row.

use super::super::figures::Spread;
use super::super::results::Row;
use super::charts::{Entry, Series};
use super::svg::{escape, number};

/// The modes in the order of charts: name, CSS class of the colour, description.
const WAYS: [(&str, &str, &str); 11] = [
    ("generator", "plain", "client and server in one namespace: the limit of the generator"),
    ("plain", "plain", "plain routing: no Service"),
    ("kube-proxy-nftables", "nftables", "kube-proxy, nftables"),
    ("kube-proxy-iptables", "iptables", "kube-proxy, iptables"),
    ("ours", "ours", "lb-agent, tc"),
    ("ours-stack", "stack", "lb-agent, tc, every packet through the stack"),
    ("ours-sockets", "sockets", "lb-agent, socket hooks for pods as well"),
    ("minimal", "minimal", "minimal tc programs for one ClusterIP, with stack bypass"),
    ("minimal-stack", "minimal", "minimal tc programs, every packet through the stack"),
    ("plain-whole", "plain", "plain routing, complete checksums"),
    ("ours-xdp", "xdp", "lb-agent, XDP on external interfaces, complete checksums"),
];

/// The CSS class of a mode's colour.
pub(super) fn class(way: &str) -> &'static str {
    WAYS.iter().find(|(name, ..)| *name == way).map_or("plain", |(_, class, _)| *class)
}

/// The legend: the colours of the modes that occur in the rows.
pub(super) fn legend(rows: &[Row]) -> String {
    let present = |way: &&(&str, &str, &str)| rows.iter().any(|row| row.label("way") == way.0);
    let item = |(name, class, words): &(&str, &str, &str)| {
        format!("<li class=\"{class}\"><b>{name}</b>: {}</li>", escape(words))
    };
    let items: String = WAYS.iter().filter(present).map(item).collect();
    format!("<ul class=\"legend\">{items}</ul>")
}

/// The rows with a measure and with these labels.
pub(super) fn rows<'a>(
    rows: &'a [Row],
    labels: &[(&str, &str)],
    measure: &str,
) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(move |row| {
        row.measure == measure && labels.iter().all(|(name, value)| row.label(name) == *value)
    })
}

/// The values of a label, in the order of the rows.
pub(super) fn values<'a>(rows: &'a [Row], label: &str) -> Vec<&'a str> {
    let mut values: Vec<&str> = Vec::new();
    for row in rows {
        let value = row.label(label);
        if !value.is_empty() && !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// The figure of another measure with the labels of `row`.
pub(super) fn of_same_row(all: &[Row], row: &Row, measure: &str) -> Option<Spread> {
    all.iter()
        .find(|other| other.measure == measure && other.labels == row.labels)
        .map(|other| other.spread)
}

/// A bar for each mode.
pub(super) fn of_ways(all: &[Row], labels: &[(&str, &str)], measure: &str) -> Vec<Entry> {
    let entry = |row: &Row| {
        let mut said = number(row.spread.median);
        if row.disturbed {
            said.push_str(" (disturbed)");
        }
        let way = row.label("way");
        Entry { name: way.to_owned(), class: class(way).to_owned(), values: vec![row.spread], said }
    };
    rows(all, labels, measure).map(entry).collect()
}

/// A line for each mode: a measure over the number of services.
pub(super) fn by_services(all: &[Row], labels: &[(&str, &str)], measure: &str) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for row in rows(all, labels, measure) {
        let Ok(size) = row.label("services").parse::<f64>() else { continue };
        let (way, point) = (row.label("way"), (size.max(1.0), row.spread));
        match series.iter_mut().find(|one| one.name == way) {
            Some(one) => one.points.push(point),
            None => series.push(Series {
                name: way.to_owned(),
                class: class(way).to_owned(),
                points: vec![point],
            }),
        }
    }
    series
}
