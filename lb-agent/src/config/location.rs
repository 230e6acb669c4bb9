//! A position in the configuration file, which settings and problems name.

use std::fmt;

/// A position in the configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// Line, counted from 1; 0 if unknown.
    pub line: u64,
    /// Column, counted from 1; 0 if unknown.
    pub column: u64,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}
