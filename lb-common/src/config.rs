//! What the agent sets for the whole node: the one element of `SETTINGS`, and the devices and addresses.
//!
//! Everything here can change while packets flow, so nothing is compiled in.

use crate::addr::{Ip, Port};
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
    /// Whether `ip` lies inside. A prefix with an all-zero mask matches nothing (it is unset).
    #[inline(always)]
    pub const fn contains(&self, ip: &Ip) -> bool {
        let [m0, m1] = self.mask.halves();
        m0 | m1 != 0 && self.covers(ip)
    }
}

impl Prefix {
    /// As one of [`Settings::cover`]: holds no address.
    pub const NOTHING: Self = Self { ip: Ip::v6([0xff; 16]), mask: Ip::UNSPECIFIED };

    /// Whether `ip` lies inside; here an all-zero mask with an address of zeros holds every address.
    #[inline(always)]
    pub const fn covers(&self, ip: &Ip) -> bool {
        let [m0, m1] = self.mask.halves();
        let [a0, a1] = ip.halves();
        let [n0, n1] = self.ip.halves();
        ((a0 & m0) ^ n0) | ((a1 & m1) ^ n1) == 0
    }
}

/// Number of service ranges the data path compares.
pub const RANGES: usize = 8;

/// The node-wide settings, half of the element of `SETTINGS`. What every packet asks for comes first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// need not look up its frontend; see [`crate::flow::Flow::note`].
    pub removals: u32,
    /// Zero.
    pub pad: u32,
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

    /// Whether an address outside of `ranges` may have a frontend; at times true of others.
    #[inline(always)]
    pub fn may_be_other(&self, ip: &Ip) -> bool {
        let bit = other(ip);
        self.others.get(usize::from(bit >> 6)).is_some_and(|word| word >> (bit & 63) & 1 != 0)
    }

    /// Sets a bit of `others`.
    pub fn add_other(&mut self, bit: u8) {
        if let Some(word) = self.others.get_mut(usize::from(bit >> 6)) {
            *word |= 1 << (bit & 63);
        }
    }

    /// Whether a flag is set; one of them, where several are asked for.
    #[inline(always)]
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// The bit of [`Settings::others`] that stands for an address.
#[inline(always)]
pub const fn other(ip: &Ip) -> u8 {
    let [.., third, fourth] = ip.words();
    ((third ^ fourth).wrapping_mul(0x9e37_79b1) >> 24) as u8
}

plain!(Settings = 512 { netns_cookie, source_port_low, source_port_high, node_port_low, node_port_high, flags, socket_mode, removals, pad, others, hairpin4, hairpin6, cover, ranges, local, node4, node6 });
const _: () = assert!(align_of::<Settings>() == 8);

/// The element of `SETTINGS`: the settings in use, and room for those that come next. Replaced by writing the
/// half that is not in use and then `start`, so no packet sees half of a change.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsPair {
    /// Where the half in use begins in `halves`: 0 or [`SettingsPair::HALF`].
    ///
    /// VERIFIER: in bytes, for an index is multiplied by branches, each a path of the whole program.
    pub start: u32,
    /// Zero.
    pub pad: u32,
    /// Both halves.
    pub halves: [Settings; 2],
}

plain!(SettingsPair = 1_032 { start, pad, halves });

impl SettingsPair {
    /// Bytes of a half, one bit.
    pub const HALF: u32 = size_of::<Settings>() as u32;

    /// The half in use.
    pub const fn in_use(&self) -> &Settings {
        let [first, second] = &self.halves;
        if self.start & Self::HALF == 0 { first } else { second }
    }

    /// What to write, one after the other, so that `settings` become those in use.
    pub const fn replaced(&self, settings: Settings) -> [Self; 2] {
        let mut written = *self;
        let [first, second] = &mut written.halves;
        *(if self.start & Self::HALF == 0 { second } else { first }) = settings;
        let start = (self.start & Self::HALF) ^ Self::HALF;
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
    /// The link-layer address of the router behind it, this node: its own, or that of the bridge that a pod's device is a
    /// port of; zeroes where it has none of this length.
    pub hardware: [u8; 6],
    /// Zero.
    pub pad: u16,
}

impl Device {
    /// Packets that come in here are from pods of this node (bridge or prefix detector, or a pod device).
    pub const LOCAL_CLIENTS: u32 = 1;
    /// What other XDP programs send by this device gets onto its wire.
    pub const TAKES_FRAMES: u32 = 2;
    /// Nobody else has a program on it: packets may go past the stack by it, in and out.
    pub const SHORT_CUT: u32 = 4;
    /// Its other end is a pod's, and nothing lies in between (`bpf_redirect_peer`).
    pub const PEER: u32 = 8;
    /// Its IPv4 addresses are of several networks: which one becomes a source is asked of the route, once a flow.
    pub const SOURCES4: u32 = 16;
    /// The same for IPv6.
    pub const SOURCES6: u32 = 32;
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
            assert_eq!(written.halves, switched.halves);
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
