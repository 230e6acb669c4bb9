//! What becomes of each kind of object.

use std::collections::BTreeMap;
use std::fmt::Debug;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Resource;
use serde::de::DeserializeOwned;

use crate::plan::ServiceName;
use crate::snapshot::{
    Event, Kind, Names, NodeSpec, ServiceSpec, SliceName, SliceSpec, service_cidrs,
};

/// Turns the objects of one kind into events.
pub(super) trait Objects: Send {
    /// The Kubernetes type.
    type Object: Resource + Clone + DeserializeOwned + Debug + Send + 'static;
    /// The kind.
    const KIND: Kind;

    /// A list begins.
    fn began(&mut self) {}
    /// An object is there.
    fn applied(&mut self, object: &Self::Object) -> Option<Event>;
    /// An object is gone.
    fn deleted(&mut self, object: &Self::Object) -> Option<Event>;
    /// A list has ended; what to say before that is said.
    fn ended(&mut self) -> Option<Event> {
        None
    }
}

/// Services.
#[derive(Debug)]
pub(super) struct Services;

impl Objects for Services {
    type Object = Service;
    const KIND: Kind = Kind::Service;

    fn applied(&mut self, object: &Service) -> Option<Event> {
        ServiceSpec::of(object).map(|spec| Event::ServiceApplied(Box::new(spec)))
    }

    fn deleted(&mut self, object: &Service) -> Option<Event> {
        let meta = &object.metadata;
        let namespace = meta.namespace.clone().unwrap_or_default();
        Some(Event::ServiceDeleted(ServiceName { namespace, name: meta.name.clone()? }))
    }
}

/// `EndpointSlices`.
#[derive(Debug, Default)]
pub(super) struct Slices {
    names: Names,
}

impl Objects for Slices {
    type Object = EndpointSlice;
    const KIND: Kind = Kind::Slice;

    fn applied(&mut self, object: &EndpointSlice) -> Option<Event> {
        let slice = SliceSpec::of(object, &mut self.names);
        slice.map(|slice| Event::SliceApplied(Box::new(slice)))
    }

    fn deleted(&mut self, object: &EndpointSlice) -> Option<Event> {
        let meta = &object.metadata;
        let namespace = self.names.text(meta.namespace.as_deref().unwrap_or_default());
        let name = meta.name.as_deref()?.into();
        Some(Event::SliceDeleted(SliceName { namespace, name }))
    }
}

/// This node.
#[derive(Debug)]
pub(super) struct Nodes;

impl Objects for Nodes {
    type Object = Node;
    const KIND: Kind = Kind::Node;

    fn applied(&mut self, object: &Node) -> Option<Event> {
        NodeSpec::of(object).map(|node| Event::NodeApplied(Box::new(node)))
    }

    fn deleted(&mut self, object: &Node) -> Option<Event> {
        Some(Event::NodeDeleted(object.metadata.name.as_deref()?.into()))
    }
}

/// `ServiceCIDRs`: few, and always told as a whole.
#[derive(Debug, Default)]
pub(super) struct Cidrs {
    listing: bool,
    by_name: BTreeMap<String, Vec<IpNet>>,
}

impl Cidrs {
    fn all(&self) -> Event {
        Event::ServiceCidrs(self.by_name.values().flatten().copied().collect())
    }
}

impl Objects for Cidrs {
    type Object = ServiceCIDR;
    const KIND: Kind = Kind::ServiceCidr;

    fn began(&mut self) {
        self.listing = true;
        self.by_name.clear();
    }

    fn applied(&mut self, object: &ServiceCIDR) -> Option<Event> {
        let (cidrs, findings) = service_cidrs(object);
        for finding in findings {
            tracing::warn!(%finding, "object has a problem");
        }
        drop(self.by_name.insert(object.metadata.name.clone()?, cidrs));
        (!self.listing).then(|| self.all())
    }

    fn deleted(&mut self, object: &ServiceCIDR) -> Option<Event> {
        drop(self.by_name.remove(object.metadata.name.as_deref()?));
        Some(self.all())
    }

    fn ended(&mut self) -> Option<Event> {
        self.listing = false;
        Some(self.all())
    }
}
