//! Converts `OpenMetrics` to the Prometheus text format 0.0.4, which kube-proxy serves and scripts read, for clients
//! that do not accept `OpenMetrics`.
//!
//! Declarations of counters also end in `_total`, bounds of buckets are written as Go does, and there is no end marker.

use std::fmt::Write as _;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Content type of `OpenMetrics`.
pub(super) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of the text format 0.0.4.
pub(super) const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Reports whether an `Accept` header contains `OpenMetrics`.
pub(super) fn is_open_metrics(accept: &str) -> bool {
    accept.split(',').any(|kind| kind.trim().starts_with("application/openmetrics-text"))
}

/// Encodes a registry as `OpenMetrics`.
pub(super) fn encoded(registry: &Registry) -> Result<String, String> {
    let mut text = String::new();
    encode(&mut text, registry).map_err(|error| error.to_string())?;
    Ok(text)
}

/// Converts a page of `OpenMetrics` to the text format 0.0.4.
pub(super) fn plain(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut lines = open_metrics.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap_or((help, ""));
            // The name in the older format depends on the type: it has `_total` for counters. The type is in the next
            // line.
            let kind = lines.peek().and_then(|line| declaration(line)).map(|(_, kind)| kind);
            put(&mut text, &["# HELP ", &named(name, kind), " ", help]);
        } else if let Some((name, kind)) = declaration(line) {
            let plain = if kind == "unknown" { "untyped" } else { kind };
            put(&mut text, &["# TYPE ", &named(name, Some(kind)), " ", plain]);
        // In this format Go's library writes whole bounds without `.0`, and queries name them like that.
        } else if let Some((before, bound, after)) = bucket(line) {
            put(&mut text, &[before, "le=\"", bound, "\"", after]);
        } else if !line.starts_with("# ") {
            put(&mut text, &[line]);
        }
    }
    text
}

fn declaration(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("# TYPE ")?.split_once(' ')
}

fn named(name: &str, kind: Option<&str>) -> String {
    if kind == Some("counter") { format!("{name}_total") } else { name.to_owned() }
}

/// Splits a sample of a bucket whose bound ends with `.0`: the text before the label, the bound without that end, and
/// the text after it.
fn bucket(line: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = line.split_once("le=\"")?;
    let (bound, after) = rest.split_once('"')?;
    let bound = bound.strip_suffix(".0")?;
    before.contains("_bucket{").then_some((before, bound, after))
}

fn put(text: &mut String, parts: &[&str]) {
    let all = parts.concat();
    if writeln!(text, "{all}").is_err() {
        // Writing to a string cannot fail.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_buckets_and_the_end_are_as_prometheus_has_them() {
        let open = "# HELP a Things.\n# TYPE a counter\na_total{x=\"le\"} 1\n\
                    # HELP b Times.\n# TYPE b histogram\nb_sum 1.5\nb_bucket{le=\"59.0\",f=\"4\"} 2\n\
                    b_bucket{le=\"0.25\"} 1\nb_bucket{le=\"+Inf\"} 3\n# TYPE c unknown\nc 1.0\n# EOF\n";
        let expected = "# HELP a_total Things.\n# TYPE a_total counter\na_total{x=\"le\"} 1\n\
                    # HELP b Times.\n# TYPE b histogram\nb_sum 1.5\nb_bucket{le=\"59\",f=\"4\"} 2\n\
                    b_bucket{le=\"0.25\"} 1\nb_bucket{le=\"+Inf\"} 3\n# TYPE c untyped\nc 1.0\n";
        assert_eq!(plain(open), expected);
    }

    #[test]
    fn openmetrics_is_chosen_only_if_accepted() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1";
        assert!(is_open_metrics(prometheus));
        assert!(!is_open_metrics("text/html, */*") && !is_open_metrics(""));
    }
}
