//! Services as the agent writes them for the data path: frontends, services, selection tables and backends.
//!
//! A *service* here is one port of one Kubernetes Service in one family (contract 1.3). The agent writes all of it, and
//! the data path only reads it.

use crate::addr::{Ip, Port, Protocol};
use crate::layout::plain;

/// The address, port and protocol to which a client sends: the key of `SERVICES`.
///
/// Three kinds share the map: an address with port and protocol (ClusterIP, external IP, load
/// balancer VIP); a `NodePort`, whose address is [`Ip::any_of_family`]; and the marker of a known
/// ClusterIP, whose port and protocol are 0 (its other ports are rejected).
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// Address, or the wildcard of the family.
    pub ip: Ip,
    /// Port, network byte order.
    pub port: Port,
    /// IP protocol number.
    pub protocol: Protocol,
    pad: u8,
    rest: u32,
}

impl Frontend {
    /// An address, a port and a protocol.
    #[inline(always)]
    pub const fn new(ip: Ip, port: Port, protocol: Protocol) -> Self {
        Self { ip, port, protocol, pad: 0, rest: 0 }
    }

    /// The marker that an address is a ClusterIP: its port and protocol are 0.
    #[inline(always)]
    pub const fn cluster_address(ip: Ip) -> Self {
        Self::new(ip, Port::NONE, Protocol::NONE)
    }

    /// The `NodePort` of the family of `ip`.
    #[inline(always)]
    pub const fn node_port(ip: Ip, port: Port, protocol: Protocol) -> Self {
        Self::new(ip.any_of_family(), port, protocol)
    }
}

plain!(Frontend = 24 { ip, port, protocol, pad, rest });

/// Identity of one service (namespace, name, port name, protocol, family) on this node. Stable
/// across restarts of the agent: affinity, sources and flows refer to it. 0 is never given out.
pub type ServiceId = u32;

/// Index into `BACKENDS`. 0 means "none".
pub type BackendId = u32;

/// One set of backends to choose from: the position of its members and its Maglev slots in `MAGLEV`.
///
/// The members begin at line `line`, 16 to a line ([`BackendId`], native order). The slots begin right after the last
/// member line: indices into the members, one byte each up to 256 members (64 to a line), two bytes (native order, 32
/// to a line) above. A set of one member has no slots.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Set {
    /// First line in `MAGLEV`.
    pub line: u32,
    /// Number of members; 0 is an empty set.
    pub members: u32,
    /// Number of Maglev slots (a prime), 0 when there is at most one member.
    pub slots: u32,
}

plain!(Set = 12 { line, members, slots });

/// One line of `MAGLEV`: 64 bytes, so a choice touches few cache lines.
pub type Line = [u8; LINE];
/// Bytes in a [`Line`].
pub const LINE: usize = 64;
/// Members ([`BackendId`]) in a line.
pub const MEMBERS_PER_LINE: u32 = 16;
/// Members up to which a slot is one byte.
pub const NARROW: u32 = 256;

impl Set {
    /// Number of lines that the members take.
    #[inline(always)]
    pub const fn member_lines(&self) -> u32 {
        self.members.div_ceil(MEMBERS_PER_LINE)
    }

    /// Number of lines that the whole set takes.
    pub const fn lines(&self) -> u32 {
        let per_line = if self.members <= NARROW { 64 } else { 32 };
        self.member_lines() + self.slots.div_ceil(per_line)
    }
}

/// Rules of one frontend, and the two sets behind it: the value of `SERVICES`. Replaced by one map
/// write, so no packet sees half of a change.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Identity of the service port.
    pub id: ServiceId,
    /// [`Flags`] of this frontend.
    pub flags: Flags,
    /// Seconds of `ClientIP` affinity (1 to 86,400), 0 for none. `spec.sessionAffinityConfig`.
    pub affinity: u32,
    /// Counts the changes of this service's sets on this node; shown by the tools, compared by tests.
    pub generation: u32,
    /// Backends under traffic policy Cluster.
    pub cluster: Set,
    /// Backends under traffic policy Local.
    pub local: Set,
}

plain!(Service = 40 { id, flags, affinity, generation, cluster, local });
const _: () = assert!(align_of::<Service>() == 4);

impl Service {
    /// Whether any endpoint is usable, on this node or elsewhere.
    #[inline(always)]
    pub const fn has_endpoints(&self) -> bool {
        self.cluster.members != 0 || self.flags.has(Flags::ANYWHERE)
    }

    /// Whether this Service of an address wins over a `NodePort` with endpoints at that address (contract 3.2): source
    /// ranges hold without endpoints, too.
    #[inline(always)]
    pub const fn hides_node_port(&self) -> bool {
        self.has_endpoints() || self.flags.has(Flags::SOURCE_RANGES)
    }
}

/// Bits of [`Service::flags`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

plain!(Flags = 4 { 0 });

impl Flags {
    /// `externalTrafficPolicy` governs (`NodePort`, external IP, VIP), else `internalTrafficPolicy` (ClusterIP).
    pub const EXTERNAL: Self = Self(1);
    /// The policy that governs this frontend is Local.
    pub const LOCAL_POLICY: Self = Self(2);
    /// Only listed sources may use this frontend (`loadBalancerSourceRanges`): look up `SOURCE_RANGES`.
    pub const SOURCE_RANGES: Self = Self(4);
    /// Some endpoint is usable somewhere in the cluster: an empty Local set drops instead of rejecting.
    pub const ANYWHERE: Self = Self(8);
    /// The frontend was removed from its service: only existing TCP and SCTP flows continue; new packets are treated as
    /// if it did not exist.
    pub const DRAINING: Self = Self(16);
    /// The entry is only the marker of a known ClusterIP: packets to any other port of it are rejected.
    pub const ADDRESS: Self = Self(32);
    pub const NODE_PORT: Self = Self(64);
    /// A process of this node listens at this ClusterIP, which is an address of the node: packets to it pass.
    ///
    /// The marker of a ClusterIP has the flag if any port of it has, and packets to ports that no Service has pass as
    /// well.
    pub const HOST: Self = Self(128);

    /// The union of both sets of bits.
    #[inline(always)]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all bits of `other` are set.
    #[inline(always)]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One endpoint of one service: the value of `BACKENDS`.
///
/// A row belongs to a service, so that an address shared by two services has two rows. The row lives as long as the
/// endpoint serves.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backend {
    /// Pod or host address.
    pub ip: Ip,
    /// Port of the endpoint (the slice's, never the Service's), network byte order.
    pub port: Port,
    /// [`Backend::LOCAL`], [`Backend::IN_CLUSTER_SET`], [`Backend::IN_LOCAL_SET`].
    pub flags: u16,
    /// Changes whenever the row gets another endpoint or loses its own: datagram flows and affinity that hold an older
    /// epoch are over. 0 is never live.
    pub epoch: u32,
    /// The service it belongs to.
    pub service: ServiceId,
    /// Zero.
    pub pad: u32,
}

plain!(Backend = 32 { ip, port, flags, epoch, service, pad });

impl Backend {
    /// The endpoint's `nodeName` is this node.
    pub const LOCAL: u16 = 1;
    /// Member of the Cluster set.
    pub const IN_CLUSTER_SET: u16 = 2;
    /// Member of the Local set.
    pub const IN_LOCAL_SET: u16 = 4;
}

/// Key of `SOURCE_RANGES`, a longest-prefix trie: a service and a source prefix that may use it.
///
/// The prefix length counts the 32 bits of the service too: 32 + 96 + n for an IPv4 prefix of n bits.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// The service, native byte order.
    pub service: ServiceId,
    /// Network address, IPv4 mapped.
    pub ip: Ip,
    pad: u32,
}

plain!(Source = 24 { service, ip, pad });

impl Source {
    /// Bits of a key without its padding: the prefix length of a lookup.
    pub const BITS: u32 = 32 + 128;

    /// The key of a service and an address or network.
    #[inline(always)]
    pub const fn new(service: ServiceId, ip: Ip) -> Self {
        Self { service, ip, pad: 0 }
    }
}
