//! One line of `status`: a name and a value.

use std::fmt::Write as _;

/// Adds a line with a name and a value to the text.
pub(in crate::show) fn line(text: &mut String, name: &str, value: &str) {
    if writeln!(text, "{name:<14} {value}").is_err() {
        // Writing to a string cannot fail.
    }
}
