//! The outcome of a request: an object to store and what it books, or a refusal.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::model::Service;
use crate::check;
use crate::field::Cause;

/// A resource that only one Service of the cluster can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Booking {
    /// A cluster IP of a Service.
    Address(IpAddr),
    /// A node port or a health check port.
    Port(u16),
}

/// The outcome of a request that is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The object to store.
    pub service: Service,
    /// Bookings that the Service gains.
    pub books: BTreeSet<Booking>,
    /// Bookings that the Service gives up.
    pub releases: BTreeSet<Booking>,
}

/// The reason why a request is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The object is invalid, for these reasons.
    Invalid(Vec<Cause>),
    /// The object is valid, but no address or port is free.
    Internal(String),
}

impl From<Cause> for Refusal {
    fn from(cause: Cause) -> Self {
        Self::Invalid(vec![cause])
    }
}

/// Returns the addresses and ports that a Service occupies.
pub(crate) fn bookings(service: &Service) -> BTreeSet<Booking> {
    let addresses = service.spec.cluster_ips.iter().filter_map(|it| check::sloppy(it));
    let addresses = addresses.map(|it| Booking::Address(it.to_canonical()));
    // An ExternalName keeps the node ports that a client sent, but they are not its own.
    let ports = service.spec.ports.iter().filter(|_| service.has_node_ports());
    let ports = ports.map(|it| it.node_port).chain([service.spec.health_check_node_port]);
    let ports = ports.filter_map(|it| u16::try_from(it).ok()).filter(|it| *it != 0);
    addresses.chain(ports.map(Booking::Port)).collect()
}
