//! Typed handles to the pinned maps: applies operations (`write`) and reads the content (`read`, `fill`). Decides
//! nothing. The maps are declared in `lb_common::maps`.

mod copy;
mod cost;
mod error;
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
pub use error::Error;
pub use flows::{FlowMaps, Table};
pub use handles::Maps;
pub use kept::{Kept, kept};
pub use shape::{MapShape, SHAPES, describe};
