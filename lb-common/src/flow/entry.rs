//! An entry of a flow with its key.

use super::{Flow, FlowKey};

/// One direction of a flow: the packets as they arrive, and their translation.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub key: FlowKey,
    pub flow: Flow,
}
