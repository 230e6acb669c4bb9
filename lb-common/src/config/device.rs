//! The interfaces that have programs.

use crate::addr::Ip;
use crate::layout::plain;

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
    /// Packets may bypass the stack by it, in and out (`shortCuts: on`).
    pub const BYPASS: u32 = 4;
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
