//! The settings that follow from the node and the configuration. `run/devices` in the agent makes
//! them; the take-over adds its flags, and `reconcile` clears prefixes of pods that endpoints do not confirm.

use super::{AddressFilter, Prefix};
use crate::addr::{Ip, Port};
use crate::flow::Lifetimes;
use crate::layout::plain;

/// Addresses, ports and modes of this node. Fields that every packet reads come first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Cookie of the network namespace whose sockets the socket hooks serve; see `socket_mode`.
    pub netns_cookie: u64,
    /// [`Settings::MASQUERADE_KUBE_PROXY`](super::Settings::MASQUERADE_KUBE_PROXY) and the other bits.
    pub flags: u32,
    /// The sockets that the socket hooks serve: [`Settings::SOCKETS_OFF`](super::Settings::SOCKETS_OFF),
    /// [`Settings::SOCKETS_HOST`](super::Settings::SOCKETS_HOST) or
    /// [`Settings::SOCKETS_ALL`](super::Settings::SOCKETS_ALL).
    pub socket_mode: u32,
    /// Lowest port for translated sources.
    pub source_port_low: Port,
    /// Highest port for translated sources, inclusive. 0: the agent has not written the settings yet.
    pub source_port_high: Port,
    /// A random number of this node, so that no other host can predict the identification of its fragmented datagrams.
    pub secret: u32,
    /// IPv4 source address of a pod that reaches itself. Pods send answers to this address to their
    /// gateway, because no route contains it.
    pub hairpin4: Ip,
    /// The same for IPv6.
    pub hairpin6: Ip,
    /// How long the entries of an idle flow count.
    pub lifetimes: Lifetimes,
    /// Sources that count as pods of this node (`detectLocalMode` by CIDR), one prefix for each family; unset: clients
    /// are recognised by their interface.
    pub local: [Prefix; 2],
    /// The node's own IPv4 address (Node object), for source ranges at the socket hooks.
    pub address4: Ip,
    /// The same for IPv6.
    pub address6: Ip,
    /// The addresses of the cluster's pods, IPv4 first; unset where they are not known.
    pub pods: [Prefix; 2],
    /// Lowest port that a translated source of a flow may have: the range has changed since, with
    /// `net.ipv4.ip_local_port_range`.
    pub answer_port_low: Port,
    /// Highest such port, inclusive.
    pub answer_port_high: Port,
    /// The addresses that this node has or had: flows may still use a former one as their source.
    pub own: AddressFilter,
}

plain!(NodeSettings = 752 { netns_cookie, flags, socket_mode, source_port_low, source_port_high, secret, hairpin4,
    hairpin6, lifetimes, local, address4, address6, pods, answer_port_low,
    answer_port_high, own });

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            netns_cookie: 0,
            flags: 0,
            socket_mode: 0,
            source_port_low: Port::NONE,
            source_port_high: Port::NONE,
            secret: 0,
            hairpin4: Ip::UNSPECIFIED,
            hairpin6: Ip::UNSPECIFIED,
            own: AddressFilter::default(),
            lifetimes: Lifetimes::default(),
            local: [Prefix::default(); 2],
            address4: Ip::UNSPECIFIED,
            address6: Ip::UNSPECIFIED,
            pods: [Prefix::default(); 2],
            answer_port_low: Port::NONE,
            answer_port_high: Port::NONE,
        }
    }
}

impl NodeSettings {
    /// The lowest privileged port for translated sources, and the first port that is not privileged.
    const PRIVILEGED_LOW: u16 = 600;
    const UNPRIVILEGED: u16 = 1024;

    /// Whether a translated source may have a port.
    #[inline(always)]
    pub const fn is_source_port(&self, port: Port) -> bool {
        let number = port.get();
        // Flows that began with an earlier range are still answered, so the widest range counts and not the one in use.
        number >= self.answer_port_low.get() && number <= self.answer_port_high.get()
            || Self::is_shared_port(port)
    }

    /// Sets the range of ports for translated sources.
    pub const fn set_source_ports(&mut self, low: Port, high: Port) {
        (self.source_port_low, self.source_port_high) = (low, high);
        (self.answer_port_low, self.answer_port_high) = (low, high);
    }

    /// Whether a port is a privileged one for translated sources, which processes of the node choose as well: NFS
    /// clients do.
    #[inline(always)]
    pub const fn is_shared_port(port: Port) -> bool {
        let number = port.get();
        number >= Self::PRIVILEGED_LOW && number < Self::UNPRIVILEGED
    }

    /// The lowest and the highest port for the translated source of a client that uses `port`. A privileged port
    /// remains one, because servers check it (`secure` exports of NFS). `nf_nat_l4proto_unique_tuple` does the same,
    /// but also uses the numbers below 600, where servers of the node listen.
    #[inline(always)]
    pub const fn source_ports(&self, port: Port) -> (u16, u16) {
        if port.get() < Self::UNPRIVILEGED {
            (Self::PRIVILEGED_LOW, Self::UNPRIVILEGED - 1)
        } else {
            (self.source_port_low.get(), self.source_port_high.get())
        }
    }

    /// Whether an address may be, or have been, one of this node's: false positives are possible.
    #[inline(always)]
    pub fn may_be_own(&self, ip: &Ip) -> bool {
        self.own.may_hold(ip)
    }

    /// Whether an address is that of a pod of the cluster; `None` where the prefix of the pods is not known.
    #[inline(always)]
    pub const fn is_pod(&self, ip: &Ip) -> Option<bool> {
        let [pods4, pods6] = &self.pods;
        let pods = if ip.is_v4() { pods4 } else { pods6 };
        if pods.is_set() { Some(pods.covers(ip)) } else { None }
    }

    /// The node's own address of a family; unspecified where it has none.
    #[inline(always)]
    pub const fn address(&self, v4: bool) -> Ip {
        if v4 { self.address4 } else { self.address6 }
    }

    /// The source address of a pod that reaches itself.
    #[inline(always)]
    pub const fn hairpin(&self, v4: bool) -> Ip {
        if v4 { self.hairpin4 } else { self.hairpin6 }
    }
}
