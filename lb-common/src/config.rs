//! Node-wide settings that the agent writes: the one element of `SETTINGS`, interfaces and addresses.
//!
//! All of it can change while packets flow, so nothing is compiled in.

use core::ops::RangeInclusive;

use crate::addr::{Ip, Port};
use crate::flow::Lifetimes;
use crate::layout::plain;

/// A network prefix; bits beyond `bits` are zero in `ip`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Network address, IPv4 mapped.
    pub ip: Ip,
    /// The mask as four words in network order.
    pub mask: Ip,
}

plain!(Prefix = 32 { ip, mask });

impl Prefix {
    /// Whether there is one: an all-zero mask means none.
    #[inline(always)]
    pub const fn is_set(&self) -> bool {
        let [m0, m1] = self.mask.u64s();
        m0 | m1 != 0
    }

    /// Whether `ip` lies inside. An unset prefix contains nothing.
    #[inline(always)]
    pub const fn contains(&self, ip: &Ip) -> bool {
        self.is_set() && self.covers(ip)
    }
}

impl Prefix {
    /// As one of [`Settings::cover`]: holds no address.
    pub const NOTHING: Self = Self { ip: Ip::v6([0xff; 16]), mask: Ip::UNSPECIFIED };

    /// Whether `ip` lies inside; here an all-zero mask with an address of zeros holds every address.
    #[inline(always)]
    pub const fn covers(&self, ip: &Ip) -> bool {
        let [m0, m1] = self.mask.u64s();
        let [a0, a1] = ip.u64s();
        let [n0, n1] = self.ip.u64s();
        ((a0 & m0) ^ n0) | ((a1 & m1) ^ n1) == 0
    }
}

/// The ports that Kubernetes gives to `NodePorts` by default (`--service-node-port-range` of kube-apiserver).
pub const USUAL_NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// Number of service ranges the data path compares.
pub const RANGES: usize = 8;

/// The node-wide settings, one slot of the element of `SETTINGS`. Fields that every packet asks for come first.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Cookie of the network namespace whose sockets the socket hooks serve; see [`Settings::socket_mode`].
    pub netns_cookie: u64,
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
    /// Counts the frontends that went or came to another service. A flow that has seen this number
    /// need not look up its frontend; see [`crate::flow::Flow::frontends_epoch`].
    pub removals: u32,
    /// A random number of this node: nobody else knows what identification a datagram in pieces gets.
    pub secret: u32,
    /// One bit, numbered by [`other`], for each address outside of `ranges` that has a frontend: external IPs, VIPs.
    pub others: [u64; 4],
    /// Address that stands for a pod that reaches itself, IPv4. Sent to its gateway by any pod, routed nowhere.
    pub hairpin4: Ip,
    /// The same for IPv6.
    pub hairpin6: Ip,
    /// One prefix for each family, IPv4 first, around `ranges`: what is outside is no ClusterIP. Read by
    /// [`Prefix::covers`].
    pub cover: [Prefix; 2],
    /// Prefixes that hold the ClusterIPs. A miss inside one is looked up as a known ClusterIP.
    pub ranges: [Prefix; RANGES],
    /// Sources that count as pods of this node ("detect local" by CIDR), one per family; unset: by device.
    pub local: [Prefix; 2],
    /// The node's own IPv4 address (Node object), for source ranges at the socket hooks.
    pub node4: Ip,
    /// The same for IPv6.
    pub node6: Ip,
    /// One bit, numbered by [`other`], for each address of this node, and
    /// for each that was one and that flows may still use as their source.
    pub own: [u64; 4],
    /// How long idle flows count.
    pub lifetimes: Lifetimes,
    /// Where the pods of the cluster have their addresses, IPv4 first; unset where that is not known.
    pub pods: [Prefix; 2],
    /// Zeros, room for what comes later: the size stays a power of two ([`SettingsPair::SLOT`]).
    pub rest: [u32; 99],
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            netns_cookie: 0,
            source_port_low: Port::NONE,
            source_port_high: Port::NONE,
            node_port_low: Port::NONE,
            node_port_high: Port::NONE,
            flags: 0,
            socket_mode: 0,
            removals: 0,
            secret: 0,
            others: [0; 4],
            hairpin4: Ip::UNSPECIFIED,
            hairpin6: Ip::UNSPECIFIED,
            cover: [Prefix::default(); 2],
            ranges: [Prefix::default(); RANGES],
            local: [Prefix::default(); 2],
            node4: Ip::UNSPECIFIED,
            node6: Ip::UNSPECIFIED,
            own: [0; 4],
            lifetimes: Lifetimes::default(),
            pods: [Prefix::default(); 2],
            rest: [0; 99],
        }
    }
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
    /// XDP sends out itself what goes to other nodes, by devices that are [`Device::TAKES_FRAMES`].
    pub const SENDS: u32 = 512;
    /// Some devices are [`Device::SHORT_CUT`].
    pub const SHORT_CUTS: u32 = 1024;
    /// On some device XDP may have translated a packet before tc sees it.
    pub const ACCELERATED: u32 = 2048;
    /// Netfilter still translates connections to frontends: what has no flow and may be of one of them is the stack's.
    pub const TAKE_OVER: u32 = 4096;
    /// Nothing begins any more: what has no flow is the stack's, and sockets are nobody's.
    pub const DRAIN: u32 = 8192;

    /// No socket is touched.
    pub const SOCKETS_OFF: u32 = 0;
    /// Sockets of the network namespace named by `netns_cookie`.
    pub const SOCKETS_HOST: u32 = 1;
    /// Sockets of every namespace below the cgroup.
    pub const SOCKETS_ALL: u32 = 2;

    /// The lowest privileged port for translated sources, and the first port that is not privileged.
    const PRIVILEGED_LOW: u16 = 600;
    const UNPRIVILEGED: u16 = 1024;

    /// Whether pods can be told from others in a family (contract 3.4): a range may be known of one only.
    #[inline(always)]
    pub const fn has_detector(&self, v4: bool) -> bool {
        let [local4, local6] = &self.local;
        let local = if v4 { local4 } else { local6 };
        !self.has(Self::NO_DETECTOR) && (!self.has(Self::LOCAL_BY_PREFIX) || local.is_set())
    }

    /// Whether an address outside of `ranges` may have a frontend; at times true of others.
    #[inline(always)]
    pub fn may_be_other(&self, ip: &Ip) -> bool {
        is_set(&self.others, other(ip))
    }

    /// Sets a bit of `others`.
    pub fn add_other(&mut self, bit: u8) {
        set(&mut self.others, bit);
    }

    /// Whether a port is one of those for translated sources.
    #[inline(always)]
    pub const fn is_source_port(&self, port: Port) -> bool {
        let number = port.get();
        number >= self.source_port_low.get() && number <= self.source_port_high.get()
            || Self::is_shared_port(port)
    }

    /// Whether a port is a privileged one for translated sources, which processes of the node choose as well: NFS
    /// clients do.
    #[inline(always)]
    pub const fn is_shared_port(port: Port) -> bool {
        let number = port.get();
        number >= Self::PRIVILEGED_LOW && number < Self::UNPRIVILEGED
    }

    /// The lowest and the highest port for the translated source of a client that uses `port`. A privileged port
    /// stays one: servers ask for it (`secure` exports of NFS). As `nf_nat_l4proto_unique_tuple` has it, but without
    /// the numbers below 600, where servers of the node are.
    #[inline(always)]
    pub const fn source_ports(&self, port: Port) -> (u16, u16) {
        if port.get() < Self::UNPRIVILEGED {
            (Self::PRIVILEGED_LOW, Self::UNPRIVILEGED - 1)
        } else {
            (self.source_port_low.get(), self.source_port_high.get())
        }
    }

    /// Whether a port is, or may become, a `NodePort`: one in use, or of the range that Kubernetes gives by default.
    #[inline(always)]
    pub const fn may_be_node_port(&self, port: Port) -> bool {
        let number = port.get();
        number >= *USUAL_NODE_PORTS.start() && number <= *USUAL_NODE_PORTS.end()
            || number >= self.node_port_low.get() && number <= self.node_port_high.get()
    }

    /// Whether an address is this node's, or was; at times true of others.
    #[inline(always)]
    pub fn may_be_own(&self, ip: &Ip) -> bool {
        is_set(&self.own, other(ip))
    }

    /// Whether an address is that of a pod of the cluster; nothing where it is not known which ones are.
    #[inline(always)]
    pub const fn is_pod(&self, ip: &Ip) -> Option<bool> {
        let [pods4, pods6] = &self.pods;
        let pods = if ip.is_v4() { pods4 } else { pods6 };
        if pods.is_set() { Some(pods.covers(ip)) } else { None }
    }

    /// The node's own address of a family; unspecified where it has none.
    #[inline(always)]
    pub const fn node(&self, v4: bool) -> Ip {
        if v4 { self.node4 } else { self.node6 }
    }

    /// Sets a bit of `own`.
    pub fn add_own(&mut self, ip: &Ip) {
        set(&mut self.own, other(ip));
    }

    /// Whether a flag is set.
    #[inline(always)]
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

#[inline(always)]
fn is_set(bits: &[u64; 4], bit: u8) -> bool {
    bits.get(usize::from(bit >> 6)).is_some_and(|word| word >> (bit & 63) & 1 != 0)
}

fn set(bits: &mut [u64; 4], bit: u8) {
    if let Some(word) = bits.get_mut(usize::from(bit >> 6)) {
        *word |= 1 << (bit & 63);
    }
}

/// The bit of [`Settings::others`] and of [`Settings::own`] that stands for an address.
#[inline(always)]
pub const fn other(ip: &Ip) -> u8 {
    let [first, second, third, fourth] = ip.words();
    ((first ^ second ^ third ^ fourth).wrapping_mul(0x9e37_79b1) >> 24) as u8
}

plain!(Settings = 1_024 { netns_cookie, source_port_low, source_port_high, node_port_low, node_port_high, flags, socket_mode, removals, secret, others, hairpin4, hairpin6, cover, ranges, local, node4, node6, own, lifetimes, pods, rest });
const _: () = assert!(align_of::<Settings>() == 8);

/// The element of `SETTINGS`: the settings in use, and room for those that come next. Replaced by writing the
/// slot that is not in use and then `start`, so no packet sees half of a change.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsPair {
    /// Where the slot in use begins in `slots`: 0 or [`SettingsPair::SLOT`].
    ///
    /// VERIFIER: in bytes, for an index is multiplied by branches, each a path of the whole program.
    pub start: u32,
    /// Zero.
    pub pad: u32,
    pub slots: [Settings; 2],
}

plain!(SettingsPair = 2_056 { start, pad, slots });

impl SettingsPair {
    /// Bytes of a slot, one bit.
    pub const SLOT: u32 = size_of::<Settings>() as u32;

    /// The slot in use.
    pub const fn in_use(&self) -> &Settings {
        let [first, second] = &self.slots;
        if self.start & Self::SLOT == 0 { first } else { second }
    }

    /// The entries to write, one after the other, so that `settings` become those in use.
    pub const fn replaced(&self, settings: Settings) -> [Self; 2] {
        let mut written = *self;
        let [first, second] = &mut written.slots;
        *(if self.start & Self::SLOT == 0 { second } else { first }) = settings;
        let start = (self.start & Self::SLOT) ^ Self::SLOT;
        [written, Self { start, ..written }]
    }
}

/// Value of `DEVICES`, keyed by interface index: what the programs must know of the device they sit on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Source for translated IPv4 packets that leave by this device, where their route names no other; unset: refuse.
    pub source4: Ip,
    /// The same for IPv6.
    pub source6: Ip,
    /// Index of the bridge this device is a port of, 0 for none.
    pub bridge: u32,
    /// [`Device::LOCAL_CLIENTS`] and the other bits.
    pub flags: u32,
    /// The link-layer address of the router behind it, this node: its own, or that of the bridge that a pod's device
    /// is a port of; zeroes where it has none of this length.
    pub hardware: [u8; 6],
    /// Zero.
    pub pad: u16,
}

impl Device {
    /// Packets that come in here are from pods of this node (bridge or prefix detector, or a pod device).
    pub const LOCAL_CLIENTS: u32 = 1;
    /// Frames that other XDP programs redirect to this interface get onto its wire.
    pub const TAKES_FRAMES: u32 = 2;
    /// Packets may go past the stack by it, in and out (`shortCuts: on`).
    pub const SHORT_CUT: u32 = 4;
    /// Its other end is a pod's, and nothing lies in between (`bpf_redirect_peer`).
    pub const PEER: u32 = 8;
    /// Its IPv4 addresses are of several networks: which one becomes a source is asked of the route, once a flow.
    pub const SOURCES4: u32 = 16;
    /// The same for IPv6.
    pub const SOURCES6: u32 = 32;
    /// A pod's: its programs are those of pods. Nobody but the agent reads this.
    pub const POD: u32 = 64;
    /// `lo`, where packets of this host to itself are met. Nobody but the agent reads this.
    pub const HOST: u32 = 128;
}

plain!(Device = 48 { source4, source6, bridge, flags, hardware, pad });

/// Bits of the values of `ADDRESSES`, keyed by [`Ip`].
pub mod address {
    /// An address of this node.
    pub const NODE: u32 = 1;
    /// `NodePorts` are served on it.
    pub const NODE_PORTS: u32 = 2;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_use_change_only_by_the_second_write() {
        let mut pair = SettingsPair::default();
        for flags in 1..5 {
            let before = *pair.in_use();
            let [written, switched] = pair.replaced(Settings { flags, ..before });
            assert_eq!(*written.in_use(), before);
            assert_eq!(*switched.in_use(), Settings { flags, ..before });
            assert_eq!(written.slots, switched.slots);
            pair = switched;
        }
    }

    #[test]
    fn cover_of_everything_and_of_nothing() {
        for ip in [Ip::v4([10, 0, 0, 1]), Ip::v6([0xff; 16]), Ip::UNSPECIFIED] {
            assert!(Prefix::default().covers(&ip));
            assert!(!Prefix::default().contains(&ip));
            assert!(!Prefix::NOTHING.covers(&ip));
        }
    }
}
