//! The TCP flags that packets of one direction have carried, and what they say about the connection.

use crate::layout::plain;

/// TCP flags that packets of one direction of a flow have carried: one byte each, 0 or 1, and two bits in `claimed`.
///
/// Bytes instead of bits: two CPUs that see packets of one direction at once and store different bytes lose nothing.
/// One of two claims at the same moment may be lost, which the other covers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    /// A packet that answers or continues: for TCP neither SYN alone nor RST, for other protocols any packet.
    pub established: u8,
    /// TCP FIN whose numbers fit ([`crate::forward`] says how).
    pub fin: u8,
    /// TCP RST whose numbers prove it.
    pub rst: u8,
    /// TCP RST (1) and FIN (2) that nothing proves.
    pub claimed: u8,
}

plain!(Shown = 4 { established, fin, rst, claimed });

impl Shown {
    /// No packet, or a SYN only.
    pub const NOTHING: Self = Self { established: 0, fin: 0, rst: 0, claimed: 0 };
    /// A packet that answers or continues, and ends nothing.
    pub const ESTABLISHED: Self = Self { established: 1, ..Self::NOTHING };
    /// The sender has closed its direction.
    pub const FIN: Self = Self { established: 1, fin: 1, ..Self::NOTHING };
    /// The sender has reset the connection.
    pub const RST: Self = Self { rst: 1, ..Self::NOTHING };
    /// An unproven RST says that the sender has reset the connection.
    pub const CLAIMED: Self = Self { claimed: 1, ..Self::NOTHING };
    /// An unproven FIN says that the sender has closed its direction.
    pub const CLAIMED_FIN: Self = Self { established: 1, claimed: 2, ..Self::NOTHING };

    /// All flags that say that the sender has ended its direction.
    pub const ENDS: Self = Self { established: 0, fin: 1, rst: 1, claimed: 3 };

    /// Whether the direction has continued, and no proven flag has ended it.
    ///
    /// A claim ends nothing: otherwise a forged FIN would put every later packet on the whole path. A flow that ends
    /// with one unproven FIN and one proven one may therefore stay protected until a sweep.
    #[inline(always)]
    pub const fn is_open(self) -> bool {
        self.established == 1 && self.fin == 0 && self.rst == 0
    }

    /// Whether a FIN, proven or not, says that the sender has closed its direction.
    #[inline(always)]
    pub const fn ends(self) -> bool {
        self.fin != 0 || self.claimed & Self::CLAIMED_FIN.claimed != 0
    }

    /// Whether a connection is over, given the flags of its other direction: one end has reset it, or both have closed
    /// it.
    ///
    /// One proven FIN and one unproven FIN are enough: a genuine FIN may be unproven, too.
    #[inline(always)]
    pub const fn is_over(self, other: Self) -> bool {
        self.rst | other.rst != 0 || self.ends() && other.ends() && self.fin | other.fin != 0
    }

    /// Flags of one packet that carries no RST.
    #[inline(always)]
    pub const fn of(is_established: bool, is_fin: bool) -> Self {
        Self { established: is_established as u8, fin: is_fin as u8, ..Self::NOTHING }
    }

    /// Sets the bytes that are set in the other value, and writes no other byte.
    #[inline(always)]
    pub const fn set(&mut self, other: Self) {
        if other.established != 0 {
            self.established = 1;
        }
        if other.fin != 0 {
            self.fin = 1;
        }
        if other.rst != 0 {
            self.rst = 1;
        }
        if other.claimed != 0 {
            self.claimed |= other.claimed;
        }
    }

    /// Clears the ends that are set in the other value, and writes no other byte.
    #[inline(always)]
    pub const fn clear_ends(&mut self, other: Self) {
        if other.fin != 0 {
            self.fin = 0;
        }
        if other.rst != 0 {
            self.rst = 0;
        }
        if other.claimed != 0 {
            self.claimed = 0;
        }
    }

    /// The union of the flags of both values.
    #[inline(always)]
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self {
            established: self.established | other.established,
            fin: self.fin | other.fin,
            rst: self.rst | other.rst,
            claimed: self.claimed | other.claimed,
        }
    }
}
