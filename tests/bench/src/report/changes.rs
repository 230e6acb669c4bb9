//! Charts of `bench churn`: the time from a change in the API to the first packet that follows it, start times, and
//! memory.

use super::super::results::Row;
use super::charts::{self, Series};
use super::figure;
use super::pick::{by_services, legend, of_ways, rows, values};
use super::svg::{escape, number};

pub(super) fn pictures(all: &[Row]) -> String {
    let mut text = legend(all);
    text.push_str("<div class=\"grid\">");
    for change in values(all, "change") {
        text.push_str(&latency(all, change));
    }
    text.push_str("</div>");
    for services in values(all, "services") {
        let mut figures = String::new();
        for measure in ["cold start", "anonymous memory", "map memory"] {
            let labels = [("services", services)];
            let Some(first) = rows(all, &labels, measure).next() else { continue };
            let endpoints = first.label("endpoints");
            let small = format!("{}, {services} x {endpoints}", first.unit);
            let drawing = charts::bars(measure, &of_ways(all, &labels, measure), None);
            figures.push_str(&figure(measure, &small, &drawing));
        }
        if !figures.is_empty() {
            let services = escape(services);
            text.extend([format!(
                "<h3>With {services} services</h3><div class=\"grid\">{figures}</div>"
            )]);
        }
    }
    text
}

/// The slow end of the distribution: the slowest hundredth of many changes, the slowest one of few.
const LATE: [(&str, &str); 2] = [("latency 99 %", "99 %"), ("latency slowest", "slowest")];

/// The median as a solid line, the slow end as a dashed line.
fn latency(all: &[Row], change: &str) -> String {
    let labels = [("change", change)];
    let mut series = by_services(all, &labels, "latency 50 %");
    let late = LATE.map(|(measure, name)| (name, by_services(all, &labels, measure)));
    let said: Vec<String> = series.iter().map(|one| said(one, &late)).collect();
    let late = late.into_iter().flat_map(|(_, late)| late);
    series.extend(late.map(|one| Series { class: one.class + " late", ..one }));
    let title = format!("{change}: change to packet");
    let drawing = charts::lines(&title, "ms", &series, true);
    figure(&title, &format!("median, and the slow end dashed. {}", said.join("; ")), &drawing)
}

fn said(one: &Series, late: &[(&str, Vec<Series>)]) -> String {
    let points = |series: &Series| {
        let points = series.points.iter().map(|(_, spread)| number(spread.median));
        points.collect::<Vec<_>>().join(", ")
    };
    let of_way = |(name, late): &(&str, Vec<Series>)| {
        let late = late.iter().find(|other| other.name == one.name)?;
        Some(format!("{name}: {}", points(late)))
    };
    let late: Vec<String> = late.iter().filter_map(of_way).collect();
    format!("{}: {} ({})", one.name, points(one), late.join("; "))
}
