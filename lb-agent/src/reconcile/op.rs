//! Map writes, as data.

use std::collections::BTreeSet;

use lb_common::config::Settings;
use lb_common::service::{Backend, BackendId, Frontend, Line, Service, ServiceId, Source};

/// A map write. The order of operations matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Writes the settings into the slot that is not in use, and switches to it.
    PutSettings(Box<Settings>),
    /// Writes a row of `BACKENDS`.
    PutBackend { id: BackendId, row: Backend },
    /// Writes lines of `MAGLEV`.
    WriteLines {
        /// Index of the first line.
        line: u32,
        /// Content of that line and the following ones.
        lines: Vec<Line>,
    },
    /// Adds a prefix to `SOURCE_RANGES`.
    PutSource {
        /// Prefix length in bits, those of the service id included.
        bits: u32,
        /// Service id and network address.
        source: Source,
    },
    /// Removes a prefix from `SOURCE_RANGES`.
    RemoveSource {
        /// Prefix length in bits, those of the service id included.
        bits: u32,
        /// Service id and network address.
        source: Source,
    },
    /// Writes an entry of `SERVICES`.
    PutService {
        /// Key of the entry.
        frontend: Frontend,
        /// Value of the entry.
        service: Service,
    },
    /// Removes an entry of `SERVICES`.
    RemoveService {
        /// Key of the entry.
        frontend: Frontend,
    },
    /// Removes the clients of services that are gone or have no affinity any more from `AFFINITY`.
    ///
    /// All services are in one operation, because each takes a walk through the map.
    ForgetClients { services: BTreeSet<ServiceId> },
}
