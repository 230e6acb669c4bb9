//! A value with its origin: `config view` prints it, and flags and file are weighed by it.

use std::fmt;

use super::location::Location;
use super::section::FileValue;

/// The origin of the value of a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SettingOrigin {
    /// The value is the default.
    #[default]
    Default,
    /// A flag, named without its dashes.
    Flag(&'static str),
    File(Location),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Flag(name) => write!(f, "flag --{name}"),
            Self::File(location) => write!(f, "file, {location}"),
        }
    }
}

/// A value and its origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting<T> {
    pub value: T,
    /// Where it comes from.
    pub origin: SettingOrigin,
}

impl<T> Setting<T> {
    /// Makes a default value.
    pub const fn new(value: T) -> Self {
        Self { value, origin: SettingOrigin::Default }
    }

    /// Reports whether a flag or the file set the value.
    pub fn is_set(&self) -> bool {
        self.origin != SettingOrigin::Default
    }

    pub(super) fn file<F: Into<T>>(&mut self, found: Option<FileValue<F>>) {
        if let Some(found) = found {
            *self = Self { value: found.value.into(), origin: SettingOrigin::File(found.location) };
        }
    }

    pub(super) fn flag<F: Into<T>>(&mut self, name: &'static str, value: Option<F>) {
        if let Some(value) = value {
            *self = Self { value: value.into(), origin: SettingOrigin::Flag(name) };
        }
    }
}
