//! Errors of maps, and the helpers that name the map.

use std::io;

use aya::maps::MapError;

/// Why a map could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not there, not ours, or not allowed.
    #[error("map {map}")]
    Map {
        map: &'static str,
        /// The error of the kernel.
        #[source]
        source: MapError,
    },
    /// A batch was refused.
    #[error("map {map}")]
    Batch {
        map: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

pub(super) type Result<T> = std::result::Result<T, Error>;

pub(super) fn named(map: &'static str) -> impl Fn(MapError) -> Error + Copy {
    move |source| Error::Map { map, source }
}

/// The value of a lookup, if there is one.
pub(super) fn found<T>(
    looked_up: std::result::Result<T, MapError>,
    map: &'static str,
) -> Result<Option<T>> {
    match looked_up {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(source) => Err(Error::Map { map, source }),
    }
}

pub(super) fn batched(map: &'static str) -> impl Fn(io::Error) -> Error + Copy {
    move |source| Error::Batch { map, source }
}
