//! The interfaces that have programs: the values of `DEVICES`.

use crate::addr::Ip;
use crate::layout::plain;

/// Value of `DEVICES`, keyed by interface index: the facts about its interface that a program needs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Source for translated IPv4 packets that leave by this interface, where their route names no other; unset:
    /// refuse.
    pub source4: Ip,
    /// The same for IPv6.
    pub source6: Ip,
    /// Index of the bridge that has this interface as a port, 0 for none.
    pub bridge: u32,
    /// [`Device::LOCAL_CLIENTS`] and the other bits.
    pub flags: u32,
    /// The link-layer address at which this node routes for its hosts: the interface's own, or that of
    /// the bridge that has a pod's interface as a port; zeros where there is none of six bytes.
    pub hardware: [u8; 6],
    /// Zero.
    pub pad: u16,
}

impl Device {
    /// Packets that come in here are from pods of this node (bridge or prefix detector, or a pod's interface).
    pub const LOCAL_CLIENTS: u32 = 1;
    /// The interface transmits frames that XDP programs of other interfaces redirect to it.
    pub const TAKES_FRAMES: u32 = 2;
    /// Packets may bypass the stack by this interface, in and out (`bypass: on`).
    pub const BYPASS: u32 = 4;
    /// The other end of the interface is in a pod, with nothing in between (`bpf_redirect_peer`).
    pub const PEER: u32 = 8;
    /// The interface has IPv4 addresses of several networks: the route decides which one becomes a source, once a flow.
    pub const SOURCES4: u32 = 16;
    /// The same for IPv6.
    pub const SOURCES6: u32 = 32;
    /// The interface of a pod: its programs are those of pods. Only the agent reads this bit.
    pub const POD: u32 = 64;
    /// The interface is `lo`, where packets of this host to itself pass. Only the agent reads this bit.
    pub const HOST: u32 = 128;
    /// Packets of another interface leave by this one as well (VLAN, macvlan, bridge, bond), and the program there may
    /// have translated them.
    pub const CARRIES: u32 = 256;
    /// An interface over this one (VLAN, macvlan) has programs, which see its packets after those of this one.
    pub const HAS_UPPER: u32 = 512;
    /// The external interface is down, so that the stack receives nothing there, or has no carrier, so that routes may
    /// have moved to another one.
    pub const DOWN: u32 = 1024;
    /// The interface is a tunnel: over IPv6 it stores what it learns about the MTU in the route of a packet
    /// (`skb_tunnel_check_pmtu` in `net/ipv4/ip_tunnel_core.c`).
    pub const TUNNEL: u32 = 2048;

    /// The flag [`Device::SOURCES4`] or [`Device::SOURCES6`].
    #[inline(always)]
    pub const fn sources_flag(v4: bool) -> u32 {
        if v4 { Self::SOURCES4 } else { Self::SOURCES6 }
    }

    /// The address that packets get as their source unless the route decides; unspecified if there is none.
    #[inline(always)]
    pub const fn source(&self, v4: bool) -> Ip {
        if v4 { self.source4 } else { self.source6 }
    }

    /// Whether the interface has addresses of several networks, so that the route decides about a source (ADR 0011).
    #[inline(always)]
    pub const fn has_sources(&self, v4: bool) -> bool {
        self.flags & Self::sources_flag(v4) != 0
    }
}

plain!(Device = 48 { source4, source6, bridge, flags, hardware, pad });
