//! Three kinds of chart: bars, percentiles on a logarithmic axis, and lines over a size.
//!
//! Every figure shows its spread: whiskers from the first to the third quartile.

use super::super::figures::Spread;
use super::svg::{Anchor, Svg, number};

/// The width of the column of names at the left, in pixels.
const NAMES: f64 = 134.0;
/// The height of a line of names, in pixels.
const LINE: f64 = 20.0;
/// The size of a drawing with names, in pixels: its whole width, and the x coordinate at which values begin.
pub(super) const WIDE: (f64, f64) = (410.0, 276.0);

/// A bar, or a row of percentiles.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// The CSS class of its colour.
    pub(super) class: String,
    /// One value, or percentiles from the smallest to the largest.
    pub(super) values: Vec<Spread>,
    /// The text at the right.
    pub(super) said: String,
}

impl Entry {
    fn note(&self) -> String {
        let spelt = |spread: &Spread| {
            let Spread { median, low, high } = spread;
            format!("{} ({} to {})", number(*median), number(*low), number(*high))
        };
        format!("{}: {}", self.name, self.values.iter().map(spelt).collect::<Vec<_>>().join(", "))
    }
}

/// The height of a bar chart, in pixels.
pub(super) const fn height(entries: &[Entry]) -> f64 {
    LINE * entries.len() as f64 + 6.0
}

/// A bar chart from zero, one bar for each entry; `limit` is an upper bound of all values, drawn as a line.
pub(super) fn bars(what: &str, entries: &[Entry], limit: Option<f64>) -> String {
    let highest = entries.iter().flat_map(|entry| &entry.values).map(|spread| spread.high);
    let highest = highest.fold(f64::MIN_POSITIVE, f64::max);
    // A limit far above the values would make all bars short.
    let limit = limit.filter(|limit| *limit < highest * 2.0);
    let right = limit.map_or(highest, |limit| highest.max(limit));
    let ((width, values), height) = (WIDE, height(entries));
    let mut svg = Svg::new(width, height, what);
    let at = |value: f64| NAMES + (values - NAMES - 8.0) * (value / right).clamp(0.0, 1.0);
    for (index, entry) in entries.iter().enumerate() {
        let Some(spread) = entry.values.first() else { continue };
        let top = LINE * index as f64 + 3.0;
        let (middle, base) = (top + LINE / 2.0, top + LINE / 2.0 + 4.0);
        svg.text("name", (NAMES - 6.0, base), Anchor::End, &entry.name);
        let size = (at(spread.median) - NAMES, LINE - 6.0);
        svg.bar(&entry.class, (NAMES, top + 3.0), size, &entry.note());
        svg.line("whisker", (at(spread.low), middle), (at(spread.high), middle));
        svg.text("value", (values, base), Anchor::Start, &entry.said);
    }
    if let Some(limit) = limit {
        svg.line("limit", (at(limit), 0.0), (at(limit), height));
    }
    svg.element()
}

/// A chart of percentiles on a logarithmic axis, one row for each entry: higher percentiles have smaller points.
pub(super) fn percentiles(what: &str, entries: &[Entry]) -> String {
    let all = || entries.iter().flat_map(|entry| &entry.values).filter(|spread| spread.low > 0.0);
    let lowest = all().map(|spread| spread.low).fold(f64::MAX, f64::min);
    let highest = all().map(|spread| spread.high).fold(f64::MIN_POSITIVE, f64::max);
    let axis = Logarithm::around(lowest, highest);
    let (width, values) = WIDE;
    let bottom = LINE * entries.len() as f64 + 3.0;
    let mut svg = Svg::new(width, bottom + LINE, what);
    let at = |value: f64| NAMES + (values - NAMES - 12.0) * axis.share(value);
    for tick in axis.ticks() {
        svg.line("grid", (at(tick), 0.0), (at(tick), bottom));
        svg.text("tick", (at(tick), bottom + 14.0), Anchor::Middle, number(tick));
    }
    for (index, entry) in entries.iter().enumerate() {
        let (Some(first), Some(last)) = (entry.values.first(), entry.values.last()) else {
            continue;
        };
        let middle = LINE * index as f64 + 3.0 + LINE / 2.0;
        svg.text("name", (NAMES - 6.0, middle + 4.0), Anchor::End, &entry.name);
        svg.path(&entry.class, &[(at(first.median), middle), (at(last.median), middle)]);
        for (index, spread) in entry.values.iter().enumerate() {
            svg.line("whisker", (at(spread.low), middle), (at(spread.high), middle));
            let radius = 5.0 - index as f64;
            svg.point(&entry.class, (at(spread.median), middle), radius, &entry.note());
        }
        svg.text("value", (values, middle + 4.0), Anchor::Start, &entry.said);
    }
    svg.element()
}

/// One line of a line chart: a value for each of several sizes.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) class: String,
    pub(super) points: Vec<(f64, Spread)>,
}

/// A line chart over a logarithmic axis of sizes; the axis of values is logarithmic as well if `is_logarithmic`, else
/// it starts at zero.
pub(super) fn lines(what: &str, unit: &str, series: &[Series], is_logarithmic: bool) -> String {
    const SIZE: (f64, f64) = (410.0, 236.0);
    const LEFT: f64 = 56.0;
    const BOTTOM: f64 = 200.0;
    let all = || series.iter().flat_map(|one| &one.points);
    let highest = all().map(|(_, spread)| spread.high).fold(f64::MIN_POSITIVE, f64::max);
    let lowest = all().map(|(_, spread)| spread.low).filter(|low| *low > 0.0);
    let vertical = Logarithm::around(lowest.fold(f64::MAX, f64::min), highest);
    let mut sizes: Vec<f64> = all().map(|(size, _)| *size).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else { return String::new() };
    let horizontal = Logarithm { from: first.log10(), to: last.log10() };
    let x = |size: f64| LEFT + 20.0 + (SIZE.0 - LEFT - 50.0) * horizontal.share(size);
    let share = |value| if is_logarithmic { vertical.share(value) } else { value / highest };
    let y = |value: f64| BOTTOM - (BOTTOM - 24.0) * share(value).clamp(0.0, 1.0);
    let mut svg = Svg::new(SIZE.0, SIZE.1, what);
    let quarters = || (0..=4).map(|quarter| highest * f64::from(quarter) / 4.0).collect();
    let ticks: Vec<f64> = if is_logarithmic { vertical.ticks() } else { quarters() };
    for tick in ticks {
        svg.line("grid", (LEFT, y(tick)), (SIZE.0, y(tick)));
        svg.text("tick", (LEFT - 6.0, y(tick) + 4.0), Anchor::End, number(tick));
    }
    svg.text("tick", (0.0, 10.0), Anchor::Start, unit);
    for size in &sizes {
        svg.line("grid", (x(*size), 20.0), (x(*size), BOTTOM));
        svg.text("tick", (x(*size), BOTTOM + 16.0), Anchor::Middle, number(*size));
    }
    svg.text("tick", (x(*last), BOTTOM + 34.0), Anchor::End, "services");
    for Series { name, class, points } in series {
        let at: Vec<_> = points.iter().map(|(size, spread)| (x(*size), y(spread.median))).collect();
        svg.path(class, &at);
        for (size, spread) in points {
            svg.line("whisker", (x(*size), y(spread.low)), (x(*size), y(spread.high)));
            let note = format!("{name}, {} services: {}", number(*size), number(spread.median));
            svg.point(class, (x(*size), y(spread.median)), 4.0, &note);
        }
    }
    svg.element()
}

/// A logarithmic axis between two powers of ten, given by their exponents.
struct Logarithm {
    from: f64,
    to: f64,
}

impl Logarithm {
    fn around(lowest: f64, highest: f64) -> Self {
        let from = lowest.min(highest).log10().floor();
        Self { from, to: highest.log10().ceil().max(from + 1.0) }
    }

    /// The position of a value along the axis: 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let length = (self.to - self.from).max(f64::MIN_POSITIVE);
        ((value.max(f64::MIN_POSITIVE).log10() - self.from) / length).clamp(0.0, 1.0)
    }

    #[expect(clippy::cast_sign_loss, reason = "an axis ends behind its beginning")]
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.to - self.from).round() as u32;
        (0..=decades).map(|decade| 10_f64.powf(self.from + f64::from(decade))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_spans_whole_powers_of_ten() {
        let axis = Logarithm::around(32.0, 1_200.0);
        assert_eq!(axis.ticks(), [10.0, 100.0, 1_000.0, 10_000.0]);
        assert!((axis.share(100.0) - 1.0 / 3.0).abs() < 1e-9);
        assert!((axis.share(0.0)).abs() < 1e-9, "a value outside the axis is drawn at its end");
    }
}
