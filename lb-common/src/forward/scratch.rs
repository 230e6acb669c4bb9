//! Working memory of the data path for one packet: everything that is too large for its stack.
//!
//! A BPF program and all its calls share 512 bytes of stack. In the kernel this is an element of a per-CPU map, on
//! the host a local variable. Packets have one element: tc and XDP programs run with softirqs off, so no other
//! interrupts them on their CPU. Socket calls have one for each socket, since packets and other processes may
//! interrupt a process. At the start of a packet or call the contents are leftovers without meaning.
//!
//! The groups of fields are declared below the steps that use them: in the files of this directory, [`Headers`] in
//! `wire`, and [`Choice`] in `choose`. Each says who writes and who reads it.

pub(super) mod begin;
pub(super) mod exit;
pub(super) mod found;
pub(super) mod quoted;

use crate::event::Verdict;
use crate::flow::Fragment;
use crate::forward::{Begin, Choice, Exit, Found, Pair, PortSearch, Quoted, Refusal, Role};
use crate::wire::Headers;

/// The next step of a packet after the search for its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// The packet follows the flow in [`Scratch::found`].
    #[default]
    Follow,
    /// The packet begins a flow to the service in [`Scratch::choice`].
    First,
    /// The packet begins a flow to the backend that it names itself (`rare/direct`).
    Direct,
    /// The packet was sent by a process of this host.
    Host,
    /// The packet follows the flow, whose source is yet to be chosen.
    Masquerade,
    /// The flow that was found is gone, as `begin/mend` has found out: the search starts over.
    Again,
    /// The packet is refused, as [`Scratch::refusal`] says.
    Refuse,
    /// The fast path gives up: the whole path begins. The whole path itself never sees this step.
    Whole,
}

/// Working memory of one packet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Scratch {
    /// The packet's own headers.
    pub headers: Headers,
    /// The entry that the packet follows, and others of its flow.
    pub found: Found,
    /// The service and the backend that are chosen for a packet without a flow.
    pub choice: Choice,
    /// The properties of the flow that the packet begins.
    pub begin: Begin,
    /// The entries of the flow in the making.
    pub pair: Pair,
    /// The search for a source port of the flow in the making.
    pub search: PortSearch,
    /// The way out of the packet: where it goes, and by which route.
    pub exit: Exit,
    /// The packet that an ICMP error quotes.
    pub quoted: Quoted,
    /// The datagram that a fragment belongs to. Written and read by `fragments`.
    pub fragment: Fragment,
    /// The role of the interface. Written when the whole path begins.
    pub role: Role,
    /// The next step. Written by the searches (`seek`, `host`) and by a choice that fails (`first`); read by the
    /// functions that run the parts in order (`ingress`, `egress`).
    pub next: Next,
    /// Why no backend is chosen. Written where a packet is refused, read by `reject`.
    pub refusal: Refusal,
    /// The verdict. Written by the part that ends the path, where that is a function of its own, and read by its
    /// caller.
    pub verdict: Verdict,
}
