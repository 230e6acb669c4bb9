//! A drawing that is embedded in an HTML page: shapes in, SVG text out. Its colours come from the CSS classes of the
//! page.

use std::fmt::Display;

/// A drawing under construction; lengths are in pixels from the upper left corner.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    what: String,
    body: String,
}

/// The position of a text relative to its point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    /// An empty drawing with the title `what`.
    pub(super) fn new(width: f64, height: f64, what: &str) -> Self {
        Self { width, height, what: escape(what), body: String::new() }
    }

    /// Adds a filled rectangle with a tooltip.
    pub(super) fn bar(&mut self, class: &str, (x, y): (f64, f64), (w, h): (f64, f64), note: &str) {
        let note = escape(note);
        self.put(&format!(
            r#"<rect class="bar {class}" x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}"><title>{note}</title></rect>"#
        ));
    }

    /// Adds a straight line.
    pub(super) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.put(&format!(
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    /// Adds a line through several points.
    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
        let points = points.collect::<Vec<_>>().join(" ");
        self.put(&format!(r#"<polyline class="path {class}" points="{points}"/>"#));
    }

    /// Adds a point with a tooltip.
    pub(super) fn point(&mut self, class: &str, (x, y): (f64, f64), radius: f64, note: &str) {
        let note = escape(note);
        self.put(&format!(
            r#"<circle class="point {class}" cx="{x:.1}" cy="{y:.1}" r="{radius:.1}"><title>{note}</title></circle>"#
        ));
    }

    /// Adds one line of text with its base line at `y`.
    pub(super) fn text(
        &mut self,
        class: &str,
        (x, y): (f64, f64),
        anchor: Anchor,
        text: impl Display,
    ) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(&text.to_string());
        self.put(&format!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    /// Embeds a drawing with its upper left corner at `(x, y)`.
    pub(super) fn place(&mut self, (x, y): (f64, f64), drawing: &str) {
        self.put(&format!(r#"<g transform="translate({x:.1} {y:.1})">{drawing}</g>"#));
    }

    /// The drawing as an element of a page.
    pub(super) fn element(self) -> String {
        self.with("", "")
    }

    /// The drawing as a file of its own, with a background.
    pub(super) fn file(self, style: &str) -> String {
        let paper = r#"<rect class="paper" width="100%" height="100%"/>"#;
        let head = format!("<style>\n{style}</style>{paper}");
        self.with(r#" xmlns="http://www.w3.org/2000/svg""#, &head) + "\n"
    }

    fn with(self, attribute: &str, head: &str) -> String {
        let Self { width, height, what, body } = self;
        format!(
            r#"<svg{attribute} viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{what}">{head}{body}</svg>"#
        )
    }

    fn put(&mut self, part: &str) {
        self.body.push_str(part);
    }
}

/// Text escaped for an element or an attribute.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A number with three significant digits, and a letter for thousands.
pub(super) fn number(value: f64) -> String {
    let (value, letter) = match value.abs() {
        large if large >= 1e9 => (value / 1e9, "G"),
        large if large >= 1e6 => (value / 1e6, "M"),
        large if large >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text =
        if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { text.as_str() };
    format!("{text}{letter}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_count() {
        let all = [0.0, 0.126, 1.0, 12.34, 999.4, 10_000.0, 23_456.0, 3.2e9].map(number);
        assert_eq!(all, ["0", "0.13", "1", "12.3", "999", "10k", "23.5k", "3.2G"]);
    }

    #[test]
    fn no_text_becomes_an_element() {
        let mut svg = Svg::new(10.0, 10.0, "a \"b\"");
        svg.text("label", (1.0, 2.0), Anchor::Start, "<script> & co");
        let element = svg.element();
        assert!(element.contains("&lt;script&gt; &amp; co"), "{element}");
        assert!(element.contains("aria-label=\"a &quot;b&quot;\""), "{element}");
    }
}
