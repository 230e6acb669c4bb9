//! The decision: turns a Service as a client sends it into the object that is stored and its bookings, or into a
//! refusal.

use std::collections::BTreeSet;

use super::allocate::Allocator;
use super::model::Service;
use super::outcome::{Decision, Refusal, bookings};
use super::ranges::{Dice, Ranges, Taken};
use super::{defaults, families, keep, validate};
use crate::field::Cause;
use crate::{check, meta};

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
