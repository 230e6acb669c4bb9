//! The main chart as an SVG file of its own, for documents: short connections in every mode, relative to plain routing.

use super::super::results::Results;
use super::STYLE;
use super::charts::{self, Entry};
use super::pick::{of_ways, values};
use super::svg::{Anchor, Svg};
use super::traffic::ROUTES;

/// The margin beside and between the parts, in pixels.
const SPACE: f64 = 14.0;
/// The height of a line of text, in pixels.
const TEXT: f64 = 18.0;

/// The main chart of the results of `bench traffic`, at the number of services at which most modes were measured, or
/// the larger of two such numbers.
pub(super) fn of(results: &Results) -> Option<String> {
    let Results { rows, machine, commit, .. } = results;
    if results.bench != "traffic" {
        return None;
    }
    let connect = [("operation", "connect"), ("family", "IPv4")];
    let figures = |services: &&str| {
        of_ways(rows, &[&connect[..], &[("services", services)]].concat(), "ratio").len()
    };
    let size = |services: &&str| (figures(services), services.parse::<u32>().ok());
    let services = values(rows, "services").into_iter().max_by_key(size)?;
    let of_route = |route: &str| -> Vec<Entry> {
        let labels = [&connect[..], &[("route", route), ("services", services)]].concat();
        let all = of_ways(rows, &labels, "ratio").into_iter();
        all.filter(|entry| !entry.name.starts_with("plain")).collect()
    };
    let parts = ROUTES.map(|(route, words)| (words, of_route(route)));
    let parts: Vec<_> = parts.into_iter().filter(|(_, entries)| !entries.is_empty()).collect();
    let of_part = |(_, entries): &(&str, Vec<Entry>)| TEXT + charts::height(entries) + SPACE;
    let (width, _) = charts::WIDE;
    let height = SPACE + TEXT + parts.iter().map(of_part).sum::<f64>() + 2.0 * TEXT;
    let title = format!("Connections a second, {services} Services: times plain routing");
    let mut svg = Svg::new(2.0f64.mul_add(SPACE, width), height, &title);
    let mut top = SPACE + TEXT;
    svg.text("head", (SPACE, top - 4.0), Anchor::Start, title);
    for part in &parts {
        let (words, entries) = part;
        svg.text("name", (SPACE, top + TEXT - 4.0), Anchor::Start, words);
        svg.place((SPACE, top + TEXT), &charts::bars(words, entries, Some(1.0)));
        top += of_part(part);
    }
    svg.text("tick", (SPACE, top), Anchor::Start, machine.words());
    svg.text("tick", (SPACE, top + TEXT - 2.0), Anchor::Start, format!("commit {commit}"));
    Some(svg.file(STYLE))
}

#[cfg(test)]
mod tests {
    use super::super::super::machine::Machine;
    use super::super::super::results::Row;
    use super::*;

    fn results(bench: &str) -> Results {
        let row = |way, services: &str, ratio: f64| {
            let labels = [("route", "pod-far"), ("operation", "connect"), ("family", "IPv4")];
            let labels = [&labels[..], &[("way", way), ("services", services)]].concat();
            Row::new(&labels, "ratio", "x", &[ratio].into_iter().collect())
        };
        let rows = vec![
            row("plain", "10", 1.0),
            row("ours", "10", 0.5),
            row("plain", "1000", 1.0),
            row("ours", "1000", 0.9),
            row("ours", "50000", 0.5),
        ];
        Results::new(bench, "abc", Machine::here(None).unwrap(), rows)
    }

    #[test]
    fn the_most_services_of_most_ways_are_shown_beside_plain_routing() {
        let picture = of(&results("traffic")).unwrap();
        assert!(picture.starts_with("<svg xmlns="), "{picture}");
        assert!(picture.contains(">ours</text>") && picture.contains(">0.9</text>"), "{picture}");
        assert!(
            !picture.contains(">plain</text>") && !picture.contains(">0.5</text>"),
            "{picture}"
        );
        assert!(picture.contains("1000 Services") && picture.contains("commit abc"), "{picture}");
    }

    #[test]
    fn there_is_none_of_other_benches() {
        assert_eq!(of(&results("churn")), None);
    }
}
