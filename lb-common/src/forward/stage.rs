//! The stages of the whole path.

use crate::flow::Side;

/// A stage of the whole path.
///
/// In the kernel each stage is a program of its own, which the stage before it enters by a tail call (ADR 0044). All
/// that a stage leaves to the next one is in the working memory; the bytes of the packet change in the last stage only.
/// The discriminants are the indices in the arrays of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Finds the flow of a packet that comes in, or its service. A packet that changes no entry follows its flow here.
    Ingress = 0,
    /// Finds the flow of a packet that goes out, and follows it.
    Egress = 1,
    /// Follows a flow whose entries the packet changes.
    Follow = 2,
    /// Begins a flow: chooses the backend and writes the entries.
    Begin = 3,
    /// Finds the flow of a packet of this host, or its service, and follows the flow.
    Host = 4,
    /// Begins a flow of this host.
    HostBegin = 5,
    /// Handles ICMP messages and refused packets, in either direction.
    Error = 6,
}

impl Stage {
    /// The number of stages.
    pub const COUNT: usize = 7;

    /// The index of the stage's program in an array of programs.
    #[inline(always)]
    pub const fn index(self) -> u32 {
        self as u32
    }

    /// The direction of the packets of this stage; `None` where it handles both.
    #[inline(always)]
    pub const fn side(self) -> Option<Side> {
        match self {
            Self::Ingress | Self::Follow | Self::Begin => Some(Side::INGRESS),
            Self::Egress | Self::Host | Self::HostBegin => Some(Side::EGRESS),
            Self::Error => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arrays of programs are filled by these numbers, and the kernel's adapter reports by these directions.
    #[test]
    fn stages_have_their_place_and_direction() {
        use Stage::{Begin, Egress, Error, Follow, Host, HostBegin, Ingress};
        let all = [Ingress, Egress, Follow, Begin, Host, HostBegin, Error];
        assert_eq!(all.len(), Stage::COUNT);
        assert_eq!(all.map(Stage::index), [0, 1, 2, 3, 4, 5, 6]);
        let [comes, goes] = [Some(Side::INGRESS), Some(Side::EGRESS)];
        assert_eq!(all.map(Stage::side), [comes, goes, comes, comes, goes, goes, None]);
    }
}
