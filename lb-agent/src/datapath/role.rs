//! The role of an interface and the direction of its packets: together they select the program.

/// The role of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The host's side of a pod's veth.
    Pod,
    /// A device to the outside.
    Edge,
    /// One without a link-layer header.
    L3,
    /// The loopback interface.
    Host,
}

impl Role {
    /// `pod`, `edge`, `l3` or `host`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Edge => "edge",
            Self::L3 => "l3",
            Self::Host => "host",
        }
    }

    /// The program for a direction.
    pub const fn program(self, direction: Direction) -> &'static str {
        match (self, direction) {
            (Self::Pod, Direction::Ingress) => "pod_ingress",
            (Self::Pod, Direction::Egress) => "pod_egress",
            (Self::Edge, Direction::Ingress) => "edge_ingress",
            (Self::Edge, Direction::Egress) => "edge_egress",
            (Self::L3, Direction::Ingress) => "l3_ingress",
            (Self::L3, Direction::Egress) => "l3_egress",
            (Self::Host, Direction::Ingress) => "host_ingress",
            (Self::Host, Direction::Egress) => "host_egress",
        }
    }
}

/// Which packets of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Those that come in by it.
    Ingress,
    /// Those that leave by it.
    Egress,
}

impl Direction {
    /// Both, answers first: nobody is asked before his answer is known.
    pub(super) const BOTH: [Self; 2] = [Self::Egress, Self::Ingress];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// As bpf(2) numbers it: `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`.
    pub(super) const fn attach_type(self) -> u32 {
        match self {
            Self::Ingress => 46,
            Self::Egress => 47,
        }
    }
}
