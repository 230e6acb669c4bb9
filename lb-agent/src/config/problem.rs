//! What is wrong with a configuration, and where.

use std::fmt;
use std::path::PathBuf;

use super::place::Place;

/// One thing that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub place: Place,
    /// The field, dotted; empty for the file as a whole.
    pub field: String,
    /// The fault, and the values that are allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.field.is_empty() { "" } else { ": " };
        write!(f, "{}: {}{separator}{}", self.place, self.field, self.message)
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read at all.
    #[error("--config {}: {source}", file.display())]
    Unreadable { file: PathBuf, source: std::io::Error },
    /// Fields of the file.
    #[error("--config {}: {}", file.display(), joined(problems))]
    File {
        file: PathBuf,
        /// All that is wrong with it.
        problems: Vec<Problem>,
    },
    /// A flag, or two that do not fit together.
    #[error("{0}")]
    Flag(String),
}

pub(super) fn joined(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
}
