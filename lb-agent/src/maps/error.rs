//! Errors of maps, and helpers that add the name of the map.

use std::io;

use aya::maps::MapError;

/// The reason why a map could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The map does not exist, has another shape, or refuses the access.
    #[error("map {map}")]
    Map {
        map: &'static str,
        /// The error of the kernel.
        #[source]
        source: MapError,
    },
    /// A batch operation, or an update or removal of a single flow, failed.
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

/// Returns the value of a lookup; `None` if the key does not exist.
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
