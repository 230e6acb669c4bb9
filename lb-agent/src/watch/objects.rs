//! Converts the objects of each kind.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use ipnet::IpNet;
use serde::de::DeserializeOwned;

use crate::plan::ServiceName;
use crate::snapshot::object::{EndpointSlice, Identifiers, Metadata, Node, Service, ServiceCidr};
use crate::snapshot::{
    Event, Interner, NodeSpec, ObjectKind, ServiceSpec, SliceName, SliceSpec, service_cidrs,
};

/// Converts the objects of one kind into events.
pub(super) trait Objects: Send {
    /// The object as it arrives.
    type Object: DeserializeOwned + Debug + Send + 'static;
    const KIND: ObjectKind;
    /// The path of the resource.
    const PATH: &'static str;

    /// Returns the identity of an object.
    fn metadata(object: &Self::Object) -> &Metadata;
    /// Notes that a list begins.
    fn began(&mut self) {}
    /// Converts an object that was added or changed.
    fn applied(&mut self, object: &Self::Object) -> Option<Event>;
    /// An object exists but cannot be read: its last readable version stays.
    fn kept(&mut self, who: &Identifiers) -> Option<Event>;
    /// An object is gone.
    fn deleted(&mut self, who: &Identifiers) -> Option<Event>;
    /// A list has ended; `is_whole` is true if every name could be read. Returns the event to send before the end is
    /// reported.
    fn ended(&mut self, _is_whole: bool) -> Option<Event> {
        None
    }
}

/// Converts Services into events.
#[derive(Debug)]
pub(super) struct ServiceObjects;

impl ServiceObjects {
    fn name(who: &Identifiers) -> ServiceName {
        ServiceName { namespace: who.namespace.clone(), name: who.name.clone() }
    }
}

impl Objects for ServiceObjects {
    type Object = Service;
    const KIND: ObjectKind = ObjectKind::Service;
    const PATH: &'static str = "/api/v1/services";

    fn metadata(object: &Service) -> &Metadata {
        &object.metadata
    }

    fn applied(&mut self, object: &Service) -> Option<Event> {
        ServiceSpec::of(object).map(|spec| Event::ServiceApplied(Box::new(spec)))
    }

    fn kept(&mut self, who: &Identifiers) -> Option<Event> {
        Some(Event::ServiceKept(Self::name(who)))
    }

    fn deleted(&mut self, who: &Identifiers) -> Option<Event> {
        Some(Event::ServiceDeleted(Self::name(who)))
    }
}

/// Converts `EndpointSlices` into events.
#[derive(Debug, Default)]
pub(super) struct SliceObjects {
    interner: Interner,
}

impl SliceObjects {
    fn name(&mut self, who: &Identifiers) -> SliceName {
        SliceName { namespace: self.interner.text(&who.namespace), name: who.name.as_str().into() }
    }
}

impl Objects for SliceObjects {
    type Object = EndpointSlice;
    const KIND: ObjectKind = ObjectKind::Slice;
    const PATH: &'static str = "/apis/discovery.k8s.io/v1/endpointslices";

    fn metadata(object: &EndpointSlice) -> &Metadata {
        &object.metadata
    }

    fn applied(&mut self, object: &EndpointSlice) -> Option<Event> {
        let slice = SliceSpec::of(object, &mut self.interner);
        slice.map(|slice| Event::SliceApplied(Box::new(slice)))
    }

    fn kept(&mut self, who: &Identifiers) -> Option<Event> {
        Some(Event::SliceKept(self.name(who)))
    }

    fn deleted(&mut self, who: &Identifiers) -> Option<Event> {
        Some(Event::SliceDeleted(self.name(who)))
    }
}

/// Converts the Node object of this node into events.
#[derive(Debug)]
pub(super) struct NodeObjects;

impl Objects for NodeObjects {
    type Object = Node;
    const KIND: ObjectKind = ObjectKind::Node;
    const PATH: &'static str = "/api/v1/nodes";

    fn metadata(object: &Node) -> &Metadata {
        &object.metadata
    }

    fn applied(&mut self, object: &Node) -> Option<Event> {
        NodeSpec::of(object).map(|node| Event::NodeApplied(Box::new(node)))
    }

    fn kept(&mut self, who: &Identifiers) -> Option<Event> {
        Some(Event::NodeKept(who.name.as_str().into()))
    }

    fn deleted(&mut self, who: &Identifiers) -> Option<Event> {
        Some(Event::NodeDeleted(who.name.as_str().into()))
    }
}

/// Converts `ServiceCIDRs` into events, each with all ranges: there are few.
#[derive(Debug, Default)]
pub(super) struct CidrObjects {
    /// The names in the current list; `None` outside of a list.
    listed: Option<BTreeSet<String>>,
    by_name: BTreeMap<String, Vec<IpNet>>,
}

impl CidrObjects {
    fn all(&self) -> Option<Event> {
        // Events are not sent during a list, because its objects are known only in part.
        let all = || Event::ServiceCidrs(self.by_name.values().flatten().copied().collect());
        self.listed.is_none().then(all)
    }

    fn see(&mut self, name: &str) {
        if let Some(listed) = &mut self.listed {
            listed.insert(name.to_owned());
        }
    }
}

impl Objects for CidrObjects {
    type Object = ServiceCidr;
    const KIND: ObjectKind = ObjectKind::ServiceCidr;
    const PATH: &'static str = "/apis/networking.k8s.io/v1/servicecidrs";

    fn metadata(object: &ServiceCidr) -> &Metadata {
        &object.metadata
    }

    fn began(&mut self) {
        self.listed = Some(BTreeSet::new());
    }

    fn applied(&mut self, object: &ServiceCidr) -> Option<Event> {
        let (cidrs, findings) = service_cidrs(object);
        for finding in findings {
            tracing::warn!(%finding, "object has a problem");
        }
        self.see(&object.metadata.name);
        drop(self.by_name.insert(object.metadata.name.clone(), cidrs));
        self.all()
    }

    fn kept(&mut self, who: &Identifiers) -> Option<Event> {
        // The object exists, so its last readable ranges stay when the list ends.
        self.see(&who.name);
        None
    }

    fn deleted(&mut self, who: &Identifiers) -> Option<Event> {
        drop(self.by_name.remove(&who.name));
        self.all()
    }

    fn ended(&mut self, is_whole: bool) -> Option<Event> {
        // An object whose name could not be read may be any of those that seem to be missing.
        if let Some(listed) = self.listed.take().filter(|_| is_whole) {
            self.by_name.retain(|name, _| listed.contains(name));
        }
        self.all()
    }
}
