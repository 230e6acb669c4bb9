//! What the agent sets for the whole node: the one element of `SETTINGS`, and the devices and addresses.
//!
//! Everything here can change while packets flow, so nothing is compiled in.

use crate::addr::{Ip, Port};

/// A network prefix; bits beyond `bits` are zero in `ip`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Network address, IPv4 mapped.
    pub ip: Ip,
    /// The mask as four words in network order.
    pub mask: Ip,
}

impl Prefix {
    /// Whether `ip` lies inside. A prefix with an all-zero mask matches nothing (it is unset).
    #[inline(always)]
    pub const fn contains(&self, ip: &Ip) -> bool {
        let [m0, m1, m2, m3] = self.mask.words();
        let [a0, a1, a2, a3] = ip.words();
        let [n0, n1, n2, n3] = self.ip.words();
        m0 | m1 | m2 | m3 != 0
            && ((a0 & m0) ^ n0) | ((a1 & m1) ^ n1) | ((a2 & m2) ^ n2) | ((a3 & m3) ^ n3) == 0
    }
}

/// Number of service ranges the data path compares.
pub const RANGES: usize = 8;

/// The node-wide settings, element 0 of `SETTINGS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Cookie of the network namespace whose sockets the socket hooks serve; see [`Settings::socket_mode`].
    pub netns_cookie: u64,
    /// Prefixes that hold the ClusterIPs. A miss inside one is looked up as a known ClusterIP.
    pub ranges: [Prefix; RANGES],
    /// Sources that count as pods of this node ("detect local" by CIDR), one per family; unset: by device.
    pub local: [Prefix; 2],
    /// Address that stands for a pod that reaches itself, IPv4. Sent to its gateway by any pod, routed nowhere.
    pub hairpin4: Ip,
    /// The same for IPv6.
    pub hairpin6: Ip,
    /// The node's own IPv4 address (Node object), for source ranges at the socket hooks.
    pub node4: Ip,
    /// The same for IPv6.
    pub node6: Ip,
    /// Lowest port for translated sources.
    pub source_port_low: Port,
    /// Highest port for translated sources, inclusive.
    pub source_port_high: Port,
    /// Lowest `NodePort` in use; high < low means there is none.
    pub node_port_low: Port,
    /// Highest `NodePort` in use.
    pub node_port_high: Port,
    /// [`Settings::RANGES_KNOWN`] and the other bits.
    pub flags: u32,
    /// Which sockets: [`Settings::SOCKETS_OFF`], [`Settings::SOCKETS_HOST`], [`Settings::SOCKETS_ALL`].
    pub socket_mode: u32,
}

impl Settings {
    /// `ranges` are the cluster's ServiceCIDRs: an unallocated address inside is dropped, not only unknown.
    pub const RANGES_KNOWN: u32 = 1;
    /// Source translation as kube-proxy does it (contract 3.3).
    pub const MASQUERADE_KUBE_PROXY: u32 = 2;
    /// With [`Settings::MASQUERADE_KUBE_PROXY`]: `masqueradeAll`.
    pub const MASQUERADE_ALL: u32 = 4;
    /// No way to tell pods from others (`detectLocalMode` without a value): contract 3.3, "no detector".
    pub const NO_DETECTOR: u32 = 8;
    /// Answer ICMP echo to a ClusterIP; else it is rejected.
    pub const ANSWER_ECHO: u32 = 16;
    /// `NodePorts` on loopback, by the socket hooks.
    pub const LOOPBACK_NODE_PORTS: u32 = 32;
    /// Some frontend is not a ClusterIP or `NodePort` (external IPs, VIPs).
    pub const OTHER_FRONTENDS: u32 = 64;
    /// "Local" is told by [`Settings::local`], not by the device.
    pub const LOCAL_BY_PREFIX: u32 = 128;
    /// "Local" is told by [`Device::LOCAL_CLIENTS`], not by what kind of device it is.
    pub const LOCAL_BY_DEVICE: u32 = 256;

    /// No socket is touched.
    pub const SOCKETS_OFF: u32 = 0;
    /// Sockets of the network namespace named by `netns_cookie`.
    pub const SOCKETS_HOST: u32 = 1;
    /// Sockets of every namespace below the cgroup.
    pub const SOCKETS_ALL: u32 = 2;

    /// Whether pods can be told from others in a family (contract 3.4): a range may be known of one only.
    #[inline(always)]
    pub fn has_detector(&self, v4: bool) -> bool {
        let [local4, local6] = &self.local;
        let mask = if v4 { local4.mask } else { local6.mask };
        !self.has(Self::NO_DETECTOR)
            && (!self.has(Self::LOCAL_BY_PREFIX) || mask != Ip::UNSPECIFIED)
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

const _: () = assert!(size_of::<Settings>() == 408 && align_of::<Settings>() == 8);

/// Value of `DEVICES`, keyed by interface index: what the programs must know of the device they sit on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Source for translated IPv4 packets that leave by this device; unset: refuse.
    pub source4: Ip,
    /// The same for IPv6.
    pub source6: Ip,
    /// Index of the bridge this device is a port of, 0 for none.
    pub bridge: u32,
    /// [`Device::LOCAL_CLIENTS`].
    pub flags: u32,
}

impl Device {
    /// Packets that come in here are from pods of this node (bridge or prefix detector, or a pod device).
    pub const LOCAL_CLIENTS: u32 = 1;
}

const _: () = assert!(size_of::<Device>() == 40);

/// Bits of the values of `ADDRESSES`, keyed by [`Ip`].
pub mod address {
    /// An address of this node.
    pub const NODE: u32 = 1;
    /// `NodePorts` are served on it.
    pub const NODE_PORTS: u32 = 2;
}
