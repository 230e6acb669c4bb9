//! Clients that stay with a backend (contract 4).

use crate::addr::Ip;
use crate::layout::plain;
use crate::service::{BackendId, ServiceId};

/// Key of `AFFINITY`: one client of one service (contract 4).
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Client {
    /// Source address before any translation.
    pub ip: Ip,
    pub service: ServiceId,
    /// 0 for the Cluster set, 1 for the Local set.
    pub scope: u32,
}

plain!(Client = 24 { ip, service, scope });

/// Value of `AFFINITY`: the backend of a client.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// The backend this client sticks to.
    pub backend: BackendId,
    /// The backend's epoch when it was chosen: a removed endpoint is forgotten at once.
    pub epoch: u32,
    /// Time of the client's last new flow, nanoseconds of `CLOCK_MONOTONIC`.
    pub seen: u64,
}

plain!(Affinity = 16 { backend, epoch, seen });
