//! The decision: turns a Service as a client sends it into the object that is stored and its bookings, or into a
//! refusal.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::allocate::Allocator;
use super::model::Service;
use super::ranges::{Dice, Ranges, Taken};
use super::{defaults, families, keep, validate};
use crate::field::Cause;
use crate::{check, meta};

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

/// Decides about a new Service. A dry run shows placeholders for allocated values.
pub fn create(
    mut new: Service,
    ranges: &Ranges,
    taken: &dyn Taken,
    dice: &mut Dice<'_>,
    is_dry: bool,
) -> Result<Decision, Refusal> {
    defaults::set(&mut new);
    keep::normalize(&mut new, None);
    families::fill_in(&mut new, None, ranges).map_err(Refusal::Invalid)?;
    let mut allocator = Allocator { ranges, taken, dice, is_dry, ports: BTreeSet::new() };
    allocator.addresses(&mut new, None)?;
    if new.has_node_ports() {
        allocator.new_node_ports(&mut new)?;
    }
    if new.needs_health_check() {
        allocator.health_check(&mut new)?;
    }
    // Status is written through its own subresource only.
    new.status = super::Status::default();
    let mut causes = meta::validate(&new.metadata, true, check::dns_label);
    causes.extend(validate::service(&new, None));
    finish(new, None, causes)
}

/// Decides about an update of a Service; `new` is the whole object as the client sends it.
pub fn update(
    mut new: Service,
    old: &Service,
    ranges: &Ranges,
    taken: &dyn Taken,
    dice: &mut Dice<'_>,
    is_dry: bool,
) -> Result<Decision, Refusal> {
    defaults::set(&mut new);
    // Addresses are kept before families are chosen, because these follow from them.
    keep::allocated(&mut new, old);
    keep::normalize(&mut new, Some(old));
    families::fill_in(&mut new, Some(old), ranges).map_err(Refusal::Invalid)?;
    let mut allocator = Allocator { ranges, taken, dice, is_dry, ports: BTreeSet::new() };
    allocator.addresses(&mut new, Some(old))?;
    if new.has_node_ports() {
        allocator.changed_node_ports(&mut new, old)?;
    }
    if !old.needs_health_check() && new.needs_health_check() {
        allocator.health_check(&mut new)?;
    }
    new.status.clone_from(&old.status);
    // Fields are dropped after allocation and before validation, as upstream: a field that the new type does not have
    // would be refused.
    keep::drop_dependent(&mut new, old);
    let mut causes = meta::validate(&new.metadata, true, meta::path_segment);
    causes.extend(meta::validate_update(&new.metadata, &old.metadata));
    causes.extend(validate::change(&new, old));
    causes.extend(validate::service(&new, Some(old)));
    finish(new, Some(old), causes)
}

fn finish(
    mut new: Service,
    old: Option<&Service>,
    causes: Vec<Cause>,
) -> Result<Decision, Refusal> {
    if !causes.is_empty() {
        return Err(Refusal::Invalid(causes));
    }
    if new.is_external_name() {
        new.spec.internal_traffic_policy = None;
    }
    // Only the difference changes, so an address that the Service keeps is never free in between.
    let (now, before) = (bookings(&new), old.map(bookings).unwrap_or_default());
    Ok(Decision {
        service: new,
        books: now.difference(&before).copied().collect(),
        releases: before.difference(&now).copied().collect(),
    })
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
