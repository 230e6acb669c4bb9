//! The supported kinds of objects, and an object of one of them.

use serde::Deserialize as _;
use serde::de::{DeserializeSeed, Deserializer};

use crate::snapshot::object::{EndpointSlice, Node, Service, ServiceCidr};

/// An object of a supported kind.
#[derive(Debug)]
pub(in crate::manifests) enum Object {
    Service(Box<Service>),
    Slice(Box<EndpointSlice>),
    Node(Box<Node>),
    ServiceCidr(Box<ServiceCidr>),
}

impl Object {
    /// Returns the `kind` field of the object.
    pub(in crate::manifests) const fn kind(&self) -> &'static str {
        match self {
            Self::Service(_) => "Service",
            Self::Slice(_) => "EndpointSlice",
            Self::Node(_) => "Node",
            Self::ServiceCidr(_) => "ServiceCIDR",
        }
    }
}

/// The kinds of objects that a manifest may contain and the agent uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KnownKind {
    Service,
    Slice,
    Node,
    ServiceCidr,
}

impl KnownKind {
    /// Returns the supported `apiVersion` of the kind.
    pub(super) const fn version(self) -> &'static str {
        match self {
            Self::Service | Self::Node => "v1",
            Self::Slice => "discovery.k8s.io/v1",
            Self::ServiceCidr => "networking.k8s.io/v1",
        }
    }
}

impl<'de> DeserializeSeed<'de> for KnownKind {
    type Value = Object;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Object, D::Error> {
        Ok(match self {
            Self::Service => Object::Service(Box::deserialize(deserializer)?),
            Self::Slice => Object::Slice(Box::deserialize(deserializer)?),
            Self::Node => Object::Node(Box::deserialize(deserializer)?),
            Self::ServiceCidr => Object::ServiceCidr(Box::deserialize(deserializer)?),
        })
    }
}
