//! The changes that an event made, and counts of changed objects.

use std::ops::AddAssign;

/// The kind of change that an event made, for callers that handle more than Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The event changed nothing.
    Nothing,
    /// [`Tracker::take`] may return something.
    Services,
    /// The Node object changed ([`Tracker::node`]); Services may be dirty too.
    Node,
    /// The prefixes of Services changed ([`Tracker::service_cidrs`]).
    ServiceCidrs,
}

/// Numbers of changed objects, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub services: u64,
    pub slices: u64,
}

/// Numbers of existing objects, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub services: usize,
    /// `EndpointSlice`s that name a Service.
    pub slices: usize,
}

impl AddAssign for Changes {
    fn add_assign(&mut self, rhs: Self) {
        self.services += rhs.services;
        self.slices += rhs.slices;
    }
}
