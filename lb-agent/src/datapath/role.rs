//! The role of an interface and the direction of its packets: together they select the program.

/// The role of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterfaceRole {
    /// The host's end of a pod's veth.
    Pod,
    /// An external interface: to the outside, or to other nodes.
    External,
    /// An external interface without a link-layer header.
    L3,
    /// The loopback interface, for packets of this host's processes.
    Host,
}

impl InterfaceRole {
    /// Returns `pod`, `external`, `l3` or `host`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::External => "external",
            Self::L3 => "l3",
            Self::Host => "host",
        }
    }

    /// Reports whether the interface leads outside or to other nodes.
    pub const fn is_external(self) -> bool {
        matches!(self, Self::External | Self::L3)
    }

    /// Returns the name of the program for a direction.
    pub const fn program(self, direction: Direction) -> &'static str {
        match (self, direction) {
            (Self::Pod, Direction::Ingress) => "pod_ingress",
            (Self::Pod, Direction::Egress) => "pod_egress",
            (Self::External, Direction::Ingress) => "external_ingress",
            (Self::External, Direction::Egress) => "external_egress",
            (Self::L3, Direction::Ingress) => "l3_ingress",
            (Self::L3, Direction::Egress) => "l3_egress",
            (Self::Host, Direction::Ingress) => "host_ingress",
            (Self::Host, Direction::Egress) => "host_egress",
        }
    }
}

/// The direction of packets at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Packets that arrive at the interface.
    Ingress,
    /// Packets that leave through the interface.
    Egress,
}

impl Direction {
    /// Both directions, egress first: the programs for answers must be in place before a request is translated.
    pub(super) const BOTH: [Self; 2] = [Self::Egress, Self::Ingress];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// Returns `BPF_TCX_INGRESS` or `BPF_TCX_EGRESS`.
    pub(super) const fn attach_type(self) -> u32 {
        match self {
            Self::Ingress => 46,
            Self::Egress => 47,
        }
    }
}
