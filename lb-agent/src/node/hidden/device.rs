//! An interface of a pod that no program of this host serves, and the reason.

use super::routes::PodRoutes;

/// An interface of a pod that no program of this host serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hidden {
    /// Name of the interface in its own namespace.
    pub name: String,
    /// Name of the namespace.
    pub namespace: String,
    pub reason: Reason,
    /// Routes of the namespace, if another interface of the pod is served.
    pub(in crate::node) pod_routes: Option<PodRoutes>,
}

/// The reason why no program serves an interface of a pod. Numbers are interface indices of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The interface is a macvlan, an ipvlan or a VLAN over this interface of the host.
    Over(u32),
    /// The interface is a network card that was moved to the pod.
    Card,
    /// The interface is a netkit in mode l3 whose other end is this interface of the host.
    NetkitL3(u32),
}
