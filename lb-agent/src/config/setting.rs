//! A value that knows where it comes from, so that `config view` can tell and flags and file can be weighed.

use std::fmt;

use super::place::Place;
use super::section::Found;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    #[default]
    Default,
    /// A flag, named without its dashes.
    Flag(&'static str),
    File(Place),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Flag(name) => write!(f, "flag --{name}"),
            Self::File(place) => write!(f, "file, {place}"),
        }
    }
}

/// A value and where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting<T> {
    pub value: T,
    /// Where it comes from.
    pub origin: Origin,
}

impl<T> Setting<T> {
    /// A value that nobody set.
    pub const fn new(value: T) -> Self {
        Self { value, origin: Origin::Default }
    }

    /// Whether somebody set it.
    pub fn is_set(&self) -> bool {
        self.origin != Origin::Default
    }

    pub(super) fn file<F: Into<T>>(&mut self, found: Option<Found<F>>) {
        if let Some(found) = found {
            *self = Self { value: found.value.into(), origin: Origin::File(found.place) };
        }
    }

    pub(super) fn flag<F: Into<T>>(&mut self, name: &'static str, value: Option<F>) {
        if let Some(value) = value {
            *self = Self { value: value.into(), origin: Origin::Flag(name) };
        }
    }
}
