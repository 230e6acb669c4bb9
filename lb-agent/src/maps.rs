//! Typed handles to the pinned maps: applies operations (`write`), reads back what is there (`read`, `fill`). Decides
//! nothing. The maps themselves are declared in `lb_common::maps`.

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
pub use flows::{FlowMaps, Table};
use handles::MapHandle;
pub use handles::Maps;
pub use kept::{Kept, kept};
pub use shape::{SHAPES, Shape, describe};

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

type Result<T> = std::result::Result<T, Error>;

fn named(map: &'static str) -> impl Fn(MapError) -> Error + Copy {
    move |source| Error::Map { map, source }
}

/// The value of a lookup, if there is one.
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
