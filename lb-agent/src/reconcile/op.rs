//! Map writes, as data.

use std::collections::BTreeSet;

use lb_common::config::Settings;
use lb_common::service::{Backend, BackendId, Frontend, Line, Service, ServiceId, Source};

/// One write, to be applied in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The settings in use.
    PutSettings(Box<Settings>),
    /// A row of `BACKENDS`.
    PutBackend { id: BackendId, row: Backend },
    /// Lines of `MAGLEV`.
    WriteLines {
        /// The first.
        line: u32,
        /// Content of it and those after it.
        lines: Vec<Line>,
    },
    /// Adds a prefix to `SOURCE_RANGES`.
    PutSource {
        /// Length of the prefix in bits, those of the service included.
        bits: u32,
        /// Service and network address.
        source: Source,
    },
    /// Removes a prefix from `SOURCE_RANGES`.
    RemoveSource {
        /// Length of the prefix in bits, those of the service included.
        bits: u32,
        /// Service and network address.
        source: Source,
    },
    /// An entry of `SERVICES`.
    PutService {
        /// Key.
        frontend: Frontend,
        /// Value.
        service: Service,
    },
    /// Removes an entry of `SERVICES`.
    RemoveService {
        /// Key.
        frontend: Frontend,
    },
    /// Removes from `AFFINITY` what it remembers of the clients of services that are gone or have no affinity any more.
    ///
    /// One operation for all: each is a walk through the map.
    ForgetClients { services: BTreeSet<ServiceId> },
}
