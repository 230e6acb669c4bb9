//! The problems of a configuration, with their positions in the file.

use std::fmt;
use std::path::PathBuf;

use super::location::Location;

/// A value that cannot be used, or a fault of the file as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub location: Location,
    /// Path of the field, with dots; empty for the file as a whole.
    pub field: String,
    /// The fault, and the values that are allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.field.is_empty() { "" } else { ": " };
        write!(f, "{}: {}{separator}{}", self.location, self.field, self.message)
    }
}

/// The reason why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("--config {}: {source}", file.display())]
    Unreadable { file: PathBuf, source: std::io::Error },
    /// The file is invalid.
    #[error("--config {}: {}", file.display(), joined(problems))]
    File {
        file: PathBuf,
        /// All problems of the file.
        problems: Vec<Problem>,
    },
    /// A flag is invalid, or the values of flags and file do not fit together.
    #[error("{0}")]
    Flag(String),
}

pub(super) fn joined(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n  ")
}
