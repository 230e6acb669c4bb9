//! The connection of a pod's interface pair to its node: routed, or as a port of a bridge.

use anyhow::Result;

use super::address::{self, Addresses};
use crate::netns::Netns;

/// The two ways in which CNI plugins connect a pod's wire to the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// The host side of the veth has a host route to the pod's address (Calico, Cilium, GKE).
    Routed,
    /// The host side is a port of the bridge `cni0`, which has the gateway address (flannel, kind, bridge).
    Bridged,
}

impl Shape {
    pub const ALL: [Self; 2] = [Self::Routed, Self::Bridged];

    /// Prepares the node for its pods, before the first of them.
    pub(crate) fn prepare(self, node: &Netns, number: u8) -> Result<()> {
        let gateway = address::pod_gateway(number)?;
        match self {
            Self::Routed => Ok(()),
            // The bridge gets a hardware address of its own, as CNI plugins set it. Otherwise it takes that of a port
            // and changes it when the port is removed, while pods still send to the old one.
            Self::Bridged => node.ip(&format!(
                "link add cni0 address 0a:58:00:00:00:{number:02x} type bridge
                 address add {v4}/24 dev cni0
                 address add {v6}/64 dev cni0 nodad
                 link set cni0 up",
                v4 = gateway.v4,
                v6 = gateway.v6
            )),
        }
    }

    /// Connects a pod whose wire exists; `device` is the interface of the wire on the node.
    pub(crate) fn connect(
        self,
        node: &Netns,
        number: u8,
        pod: &Netns,
        device: &str,
        addresses: Addresses,
    ) -> Result<()> {
        match self {
            Self::Routed => connect_routed(node, pod, device, addresses),
            Self::Bridged => {
                connect_bridged(node, pod, device, addresses, address::pod_gateway(number)?)
            }
        }
    }
}

fn connect_routed(node: &Netns, pod: &Netns, device: &str, pod_has: Addresses) -> Result<()> {
    let Addresses { v4, v6 } = pod_has;
    // With proxy ARP, the node answers at once for 169.254.1.1 and all addresses behind it.
    node.sysctl(&format!("net.ipv4.conf.{device}.proxy_arp"), "1")?;
    node.sysctl(&format!("net.ipv4.neigh.{device}.proxy_delay"), "0")?;
    node.ip(&format!(
        "address add fe80::1/64 dev {device} nodad
         link set {device} up
         route add {v4}/32 dev {device} scope link
         route add {v6}/128 dev {device}"
    ))?;
    // Last, because a pod may send packets as soon as its interface is up.
    pod.ip(&format!(
        "address add {v4}/32 dev eth0
         address add {v6}/128 dev eth0 nodad
         link set eth0 up
         route add 169.254.1.1 dev eth0 scope link
         route add default via 169.254.1.1 dev eth0
         route add default via fe80::1 dev eth0"
    ))
}

fn connect_bridged(
    node: &Netns,
    pod: &Netns,
    device: &str,
    pod_has: Addresses,
    gateway: Addresses,
) -> Result<()> {
    node.ip(&format!("link set {device} master cni0 up"))?;
    let Addresses { v4, v6 } = pod_has;
    pod.ip(&format!(
        "address add {v4}/24 dev eth0
         address add {v6}/64 dev eth0 nodad
         link set eth0 up
         route add default via {gateway4}
         route add default via {gateway6}",
        gateway4 = gateway.v4,
        gateway6 = gateway.v6
    ))
}
