//! The objects by Service: each Service with its slices, which can move between Services.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use super::node::NodeChange;
use super::{Changes, Counts, NoLocal};
use crate::plan::ServiceName;
use crate::snapshot::{ServiceSpec, SliceName, SliceSpec};
use crate::translate::{heeds_node_addresses, heeds_zone};

#[derive(Debug, Default)]
pub(super) struct Index {
    services: BTreeMap<ServiceName, TrackedService>,
    owners: BTreeMap<SliceName, Owner>,
    service_list: u32,
    slice_list: u32,
}

/// A Service that is tracked: its object, its slices, and the fingerprint of its last returned translation.
#[derive(Debug, Default)]
struct TrackedService {
    spec: Option<Box<ServiceSpec>>,
    /// Slices, sorted by name.
    slices: Vec<SliceSpec>,
    given: Option<u128>,
    no_local: NoLocal,
    /// Number of the list in which the object was last seen.
    seen: u32,
}

/// The Service that a slice belongs to.
#[derive(Debug)]
struct Owner {
    service: Arc<str>,
    seen: u32,
}

/// The objects that a change concerns.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Services to translate again. The last one is the present owner of a slice.
    pub(super) dirty: Vec<ServiceName>,
    /// Numbers of changed objects.
    pub(super) counted: Changes,
}

impl Index {
    pub(super) fn apply_service(&mut self, spec: ServiceSpec) -> Touched {
        let name = spec.name.clone();
        let entry = self.services.entry(name.clone()).or_default();
        // Objects that a list does not mention are removed at its end.
        entry.seen = self.service_list;
        if entry.spec.as_deref() == Some(&spec) {
            return Touched::default();
        }
        entry.spec = Some(Box::new(spec));
        Touched::service(name)
    }

    pub(super) fn delete_service(&mut self, name: &ServiceName) -> Touched {
        let Some(entry) = self.services.get_mut(name) else {
            return Touched::default();
        };
        // The slices stay: they come by another watch, so they may outlive their Service or precede it.
        if entry.spec.take().is_none() {
            return Touched::default();
        }
        self.tidy(name);
        Touched::service(name.clone())
    }

    pub(super) fn apply_slice(&mut self, slice: SliceSpec) -> Touched {
        let Some(service) = slice.service.clone() else {
            tracing::debug!(
                namespace = &*slice.name.namespace,
                slice = &*slice.name.name,
                "EndpointSlice names no Service"
            );
            return self.delete_slice(&slice.name);
        };
        let owner = Owner { service: Arc::clone(&service), seen: self.slice_list };
        let before = self.owners.insert(slice.name.clone(), owner);
        let mut touched = Touched::default();
        if let Some(before) = before.filter(|before| before.service != service) {
            // A slice that is relabelled moves; kube-proxy leaves it with both Services (contract 14, row 5).
            touched.dirty.push(self.remove(&slice.name, &before.service));
        }
        let name = service_of(&slice.name, &service);
        let slices = &mut self.services.entry(name.clone()).or_default().slices;
        match slices.binary_search_by(|other| other.name.cmp(&slice.name)) {
            Ok(at) if slices[at] == slice => return touched,
            Ok(at) => slices[at] = slice,
            Err(at) => {
                // The number of slices of a Service rarely changes, and spare room in the list of each Service adds up.
                slices.reserve_exact(1);
                slices.insert(at, slice);
            }
        }
        touched.dirty.push(name);
        touched.counted.slices = 1;
        touched
    }

    pub(super) fn delete_slice(&mut self, name: &SliceName) -> Touched {
        let Some(owner) = self.owners.remove(name) else {
            return Touched::default();
        };
        let dirty = vec![self.remove(name, &owner.service)];
        Touched { dirty, counted: Changes { services: 0, slices: 1 } }
    }

    /// Keeps a Service that is in the list and cannot be read: its last readable state stays.
    pub(super) fn keep_service(&mut self, name: &ServiceName) {
        if let Some(entry) = self.services.get_mut(name) {
            entry.seen = self.service_list;
        }
    }

    /// Keeps a slice that is in the list and cannot be read: its last readable state stays.
    pub(super) fn keep_slice(&mut self, name: &SliceName) {
        if let Some(owner) = self.owners.get_mut(name) {
            owner.seen = self.slice_list;
        }
    }

    pub(super) const fn begin_services(&mut self) {
        self.service_list = self.service_list.wrapping_add(1);
    }

    pub(super) const fn begin_slices(&mut self) {
        self.slice_list = self.slice_list.wrapping_add(1);
    }

    /// Deletes the Services that were not in the list.
    pub(super) fn end_services(&mut self) -> Touched {
        let list = self.service_list;
        let unseen = self.services.iter().filter(|(_, e)| e.spec.is_some() && e.seen != list);
        let unseen: Vec<_> = unseen.map(|(name, _)| name.clone()).collect();
        Touched::all(unseen.iter().map(|name| self.delete_service(name)))
    }

    /// Deletes the slices that were not in the list.
    pub(super) fn end_slices(&mut self) -> Touched {
        let list = self.slice_list;
        let unseen = self.owners.iter().filter(|(_, owner)| owner.seen != list);
        let unseen: Vec<_> = unseen.map(|(name, _)| name.clone()).collect();
        Touched::all(unseen.iter().map(|name| self.delete_slice(name)))
    }

    /// Returns a Service with its slices.
    pub(super) fn get(&self, name: &ServiceName) -> Option<(&ServiceSpec, &[SliceSpec])> {
        let entry = self.services.get(name)?;
        Some((entry.spec.as_deref()?, &entry.slices))
    }

    /// Returns every existing Service with its slices.
    pub(super) fn whole(&self) -> impl Iterator<Item = (&ServiceSpec, &[SliceSpec])> {
        self.services.values().filter_map(|entry| Some((entry.spec.as_deref()?, &*entry.slices)))
    }

    /// Records the result that is returned for a Service. Returns `None` if it is the same as before, otherwise the
    /// previous counts.
    pub(super) fn give(
        &mut self,
        name: &ServiceName,
        given: Option<u128>,
        no_local: NoLocal,
    ) -> Option<NoLocal> {
        let entry = self.services.get_mut(name)?;
        // Plans are compared by fingerprint: most changes of a slice change nothing for packets of this node.
        if entry.given == given {
            return None;
        }
        entry.given = given;
        let before = mem::replace(&mut entry.no_local, no_local);
        self.tidy(name);
        Some(before)
    }

    /// Returns the Services that a change of the node can concern.
    pub(super) fn heeding(&self, change: NodeChange) -> Vec<ServiceName> {
        let heeds = |entry: &TrackedService| {
            // A change of the node must not translate all Services again.
            (change.zone && entry.slices.iter().any(heeds_zone))
                || (change.address && entry.spec.as_deref().is_some_and(heeds_node_addresses))
        };
        let heeding = self.services.iter().filter(|(_, entry)| heeds(entry));
        heeding.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn counts(&self) -> Counts {
        let services = self.services.values().filter(|entry| entry.spec.is_some()).count();
        Counts { services, slices: self.owners.len() }
    }

    fn remove(&mut self, slice: &SliceName, service: &str) -> ServiceName {
        let name = service_of(slice, service);
        if let Some(entry) = self.services.get_mut(&name) {
            entry.slices.retain(|other| other.name != *slice);
        }
        self.tidy(&name);
        name
    }

    /// Forgets a Service that has neither a spec nor slices nor a returned result.
    fn tidy(&mut self, name: &ServiceName) {
        let empty =
            |e: &TrackedService| e.spec.is_none() && e.slices.is_empty() && e.given.is_none();
        if self.services.get(name).is_some_and(empty) {
            drop(self.services.remove(name));
        }
    }
}

impl Touched {
    fn service(name: ServiceName) -> Self {
        Self { dirty: vec![name], counted: Changes { services: 1, slices: 0 } }
    }

    fn all(parts: impl Iterator<Item = Self>) -> Self {
        parts.fold(Self::default(), |mut all, part| {
            all.dirty.extend(part.dirty);
            all.counted += part.counted;
            all
        })
    }
}

fn service_of(slice: &SliceName, service: &str) -> ServiceName {
    ServiceName { namespace: slice.namespace.as_ref().to_owned(), name: service.to_owned() }
}
