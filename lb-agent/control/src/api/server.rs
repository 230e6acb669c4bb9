//! The state of the API, which every request reads or writes.

use std::sync::Arc;

use crate::credentials::Tokens;
use crate::service::Ranges;
use crate::store::Store;

/// The state that all requests share.
#[derive(Clone, Debug)]
pub struct Server {
    /// The stored objects and their changes.
    pub store: Store,
    /// Where addresses and ports come from.
    pub ranges: Ranges,
    /// Port of the API, which the Service `kubernetes` leads to.
    pub port: u16,
    /// Names the owner of a bearer token.
    pub tokens: Arc<Tokens>,
}
