//! The objects that events concerned, and how many changed.

use std::ops::AddAssign;

/// The subject of an event, for those who act on more than Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing is different.
    Nothing,
    /// [`Tracker::take`] may have something.
    Services,
    /// The Node object is another ([`Tracker::node`]); Services may be dirty too.
    Node,
    /// The prefixes of Services are others ([`Tracker::service_cidrs`]).
    ServiceCidrs,
}

/// Numbers of changed objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub services: u64,
    pub slices: u64,
}

/// How many objects there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub services: usize,
    /// `EndpointSlices` that belong to some Service.
    pub slices: usize,
}

impl AddAssign for Changes {
    fn add_assign(&mut self, rhs: Self) {
        self.services += rhs.services;
        self.slices += rhs.slices;
    }
}
