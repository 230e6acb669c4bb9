//! The IP families, by their words in the API.

use std::fmt;

/// An IP family; IPv4 sorts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns the word of the API: `IPv4` or `IPv6`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Returns the family of an API word.
    pub fn of(word: &str) -> Option<Self> {
        [Self::V4, Self::V6].into_iter().find(|it| it.word() == word)
    }

    /// Returns the other family.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
