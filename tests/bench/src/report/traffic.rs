//! Charts of `bench traffic`: throughput, latency and CPU time of every mode, and the effect of the number of services.

use super::super::results::Row;
use super::charts::{self, Entry};
use super::figure;
use super::pick::{by_services, class, legend, of_same_row, of_ways, rows, values};
use super::svg::{escape, number};

/// The percentiles in charts of latencies.
const LATENCIES: [&str; 3] = ["latency 50 %", "latency 90 %", "latency 99 %"];

/// The routes of packets: the name in results, and the heading.
pub(super) const ROUTES: [(&str, &str); 3] = [
    ("pod-far", "a pod asks a ClusterIP, backend on the other node"),
    ("port-near", "outside asks a NodePort, backend on that node"),
    ("port-far", "outside asks a NodePort, backend on the other node"),
];

pub(super) fn pictures(all: &[Row]) -> String {
    let mut text = legend(all) + &growth(all);
    // All routes and operations are measured at one size, the smallest; larger sizes have a subset.
    let Some(services) = values(all, "services").first().copied() else { return text };
    for family in values(all, "family") {
        for (route, words) in ROUTES {
            let labels = [("family", family), ("route", route), ("services", services)];
            if rows(all, &labels, "rate").next().is_none() {
                continue;
            }
            let head = escape(&format!("{route}, {family}, {services} services: {words}"));
            text.extend([format!("<h3>{head}</h3><div class=\"grid\">")]);
            for operation in values(all, "operation") {
                text.push_str(&of_operation(all, &labels, operation));
            }
            text.push_str("</div>");
        }
    }
    text
}

/// Charts of throughput, latency and CPU time of one operation on one route.
fn of_operation(all: &[Row], labels: &[(&str, &str)], operation: &str) -> String {
    let labels: Vec<_> = labels.iter().copied().chain([("operation", operation)]).collect();
    let entries: Vec<Entry> = rows(all, &labels, "rate").map(|row| rate(all, row)).collect();
    let Some(unit) = rows(all, &labels, "rate").next().map(|row| row.unit.as_str()) else {
        return String::new();
    };
    let family = labels.iter().find(|(name, _)| *name == "family").map_or("", |(_, value)| value);
    let ceiling = [("way", "generator"), ("operation", operation), ("family", family)];
    let ceiling = rows(all, &ceiling, "rate").next().map(|row| row.spread.median);
    let limit = ceiling.map_or_else(String::new, |limit| {
        format!(", x plain routing; the generator alone {}", number(limit))
    });
    let title = |what: &str| format!("{operation}: {what}");
    let drawing = charts::bars(&title("throughput"), &entries, ceiling);
    let mut text = figure(&title("throughput"), &format!("{unit}{limit}"), &drawing);
    let entries: Vec<Entry> =
        rows(all, &labels, LATENCIES[0]).filter_map(|row| latency(all, row)).collect();
    if !entries.is_empty() {
        let drawing = charts::percentiles(&title("latency"), &entries);
        text.push_str(&figure(&title("latency"), "us: 50, 90, 99 %", &drawing));
    }
    let entries = of_ways(all, &labels, "cpu");
    if let Some(unit) = rows(all, &labels, "cpu").next().map(|row| row.unit.as_str()) {
        let drawing = charts::bars(&title("CPU"), &entries, None);
        text.push_str(&figure(&title("CPU"), unit, &drawing));
    }
    text
}

fn rate(all: &[Row], row: &Row) -> Entry {
    let way = row.label("way");
    let mut said = number(row.spread.median);
    if let Some(ratio) = of_same_row(all, row, "ratio").filter(|_| !way.starts_with("plain")) {
        said.extend([format!("  {:.2}x", ratio.median)]);
    }
    if row.disturbed {
        said.push_str(" disturbed");
    }
    Entry { name: way.to_owned(), class: class(way).to_owned(), values: vec![row.spread], said }
}

fn latency(all: &[Row], row: &Row) -> Option<Entry> {
    let values: Vec<_> =
        LATENCIES.iter().map(|measure| of_same_row(all, row, measure)).collect::<Option<_>>()?;
    let said: Vec<String> = values.iter().map(|spread| number(spread.median)).collect();
    let way = row.label("way");
    let class = class(way).to_owned();
    Some(Entry { name: way.to_owned(), class, values, said: said.join(" / ") })
}

/// Charts over the number of services.
fn growth(all: &[Row]) -> String {
    let mut text = String::new();
    for operation in values(all, "operation") {
        for (route, words) in ROUTES {
            let labels = [("family", "IPv4"), ("route", route), ("operation", operation)];
            let series = by_services(all, &labels, "rate");
            if series.iter().all(|one| one.points.len() < 2) {
                continue;
            }
            let unit = rows(all, &labels, "rate").next().map_or("", |row| row.unit.as_str());
            let title = format!("{operation}, {route}");
            let drawing = charts::lines(&title, unit, &series, false);
            text.push_str(&figure(&title, words, &drawing));
        }
    }
    if text.is_empty() {
        return text;
    }
    format!("<h3>Against the number of services (IPv4)</h3><div class=\"grid\">{text}</div>")
}
