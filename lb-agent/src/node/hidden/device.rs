//! A device of a pod that no program of this host serves, and the reason.

use super::routes::Routes;

/// A device of a pod that no program of this host serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hidden {
    /// Its name in its own namespace.
    pub name: String,
    /// Name of the namespace.
    pub namespace: String,
    pub reason: Reason,
    /// The routes of the namespace, where another interface of the pod is served.
    pub(in crate::node) beside: Option<Routes>,
}

/// Why no program serves a device of a pod. Numbers are interface indices of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It is a macvlan, an ipvlan or a VLAN over this device.
    Over(u32),
    /// It is a network card that was moved to the pod.
    Card,
    /// It is a netkit in mode l3 whose other end is this device.
    NetkitL3(u32),
}
