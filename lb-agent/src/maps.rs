//! Typed handles to the pinned maps: applies operations (`write`) and reads the content (`read`, `fill`). Decides
//! nothing. The maps are declared in `lb_common::maps`.

use std::io;

use aya::maps::MapError;

mod copy;
mod cost;
mod fill;
mod filter;
mod flows;
mod handles;
mod inherited;
mod kept;
mod look_up;
mod raw;
mod read;
mod shape;
#[cfg(test)]
mod table;
mod walk;
mod write;

pub(crate) use copy::{copy, mark_all};
pub use flows::Table;
use handles::MapHandle;
pub use handles::Maps;
pub use kept::{Kept, kept};
pub use shape::{SHAPES, Shape, describe};

/// An error of opening, reading or writing a map.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The map does not exist, has another type, or access is denied.
    #[error("map {map}")]
    Map {
        map: &'static str,
        /// The error of the kernel.
        #[source]
        source: MapError,
    },
    /// The kernel refused a batch operation.
    #[error("map {map}")]
    Batch {
        map: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, Error>;

fn named(map: &'static str) -> impl Fn(MapError) -> Error + Copy {
    move |source| Error::Map { map, source }
}

/// Turns "key not found" of a lookup into `None`.
fn found<T>(looked_up: std::result::Result<T, MapError>, map: &'static str) -> Result<Option<T>> {
    match looked_up {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(source) => Err(Error::Map { map, source }),
    }
}

fn batched(map: &'static str) -> impl Fn(io::Error) -> Error + Copy {
    move |source| Error::Batch { map, source }
}
