//! The two sizes of a test, short in every run and long in a campaign (`cargo xtask prove`), and the figures of a
//! campaign.
//!
//! Only the amount of work differs: both sizes make the same assertions.
#![expect(clippy::print_stdout, reason = "xtask reads figures from the output of tests")]

use std::env;
use std::fmt::Display;

/// The environment variable that is set and not empty in a campaign.
const VARIABLE: &str = "LB_PROVE";
/// The prefix of an output line with a figure; name, value and unit follow.
const FIGURE: &str = "figure:";

/// Returns `long` in a campaign, and `short` in any other run.
pub fn size<T>(short: T, long: T) -> T {
    if env::var_os(VARIABLE).is_some_and(|value| !value.is_empty()) { long } else { short }
}

/// Prints a figure for `docs/proof.md`; the last two words of the line are value and unit.
///
/// # Panics
///
/// If value or unit is not exactly one word.
pub fn figure(name: &str, value: impl Display, unit: &str) {
    println!("{}", line(name, &value.to_string(), unit));
}

fn line(name: &str, value: &str, unit: &str) -> String {
    for word in [value, unit] {
        assert!(word.split_whitespace().eq([word]), "{name}: {word:?} is not one word");
    }
    format!("{FIGURE} {name} {value} {unit}")
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn figure_is_one_line() {
        assert_eq!(line("lost questions", "0", "questions"), "figure: lost questions 0 questions");
    }

    #[test]
    #[should_panic(expected = "is not one word")]
    fn value_is_one_word() {
        drop(line("lost questions", "none at all", "questions"));
    }
}
