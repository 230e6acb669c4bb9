//! The packet that an ICMP error quotes.

use crate::flow::{FlowKey, Tuple};
use crate::wire::{Identification, View};

/// The packet that an ICMP error quotes. Written by `quoted::read`, the last two fields by `quoted::write`; read by
/// `icmp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Quoted {
    /// The headers of the quoted packet, without its tuple; never plain.
    pub view: View,
    /// The identification of the quoted packet, if it is a fragment.
    pub id: Identification,
    /// The reverse of the quoted tuple, on the side of the error: the key of the flow's entry that the error's
    /// direction meets.
    pub key: FlowKey,
    /// The tuple as it is quoted.
    pub before: Tuple,
    /// The tuple as the sender of the quoted packet knows it.
    pub after: Tuple,
}
