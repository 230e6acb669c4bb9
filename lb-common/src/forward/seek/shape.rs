//! The shapes of packets for which a search is compiled: plain IPv4, plain IPv6, and any.
//!
//! A shape says where the headers of the packet and its entry are. The instances of plain packets are the fast path:
//! they give up where only the whole path may continue (ADR 0023).

use crate::flow::{Flow, FlowKey};
use crate::forward::{Found, Role};
use crate::packet::Packet;
use crate::tables::Flows;
use crate::wire::{Headers, View};

/// The shape of a packet.
pub(in crate::forward) trait Shape {
    /// Whether the packet is plain, so that its search gives up where only the whole path may continue.
    const PLAIN: bool;

    /// The headers of the packet, without its tuple.
    fn view<'a>(&'a self, headers: &'a Headers) -> &'a View;

    /// The role of the interface. `written`: the one in the working memory.
    fn role(&self, written: Role) -> Role;

    /// Looks up the entry of the packet.
    fn look_up<P: Packet, T: Flows>(
        &mut self,
        packet: &P,
        tables: &T,
        key: &FlowKey,
        found: &mut Found,
    ) -> bool;

    /// The entry that [`Shape::look_up`] has found.
    fn flow<'a, P: Packet>(&'a self, packet: &P, found: &'a Found) -> &'a Flow;
}

/// A packet of any shape. Its headers, its entry and the role are in the working memory.
///
/// VERIFIER: the role is read again for each decision: as a local value it would be known on each path, and the
/// verifier would walk a tenth more instructions.
pub(in crate::forward) struct Any;

impl Shape for Any {
    const PLAIN: bool = false;

    #[inline(always)]
    fn view<'a>(&'a self, headers: &'a Headers) -> &'a View {
        &headers.view
    }

    #[inline(always)]
    fn role(&self, written: Role) -> Role {
        written
    }

    #[inline(always)]
    fn look_up<P: Packet, T: Flows>(
        &mut self,
        _: &P,
        tables: &T,
        key: &FlowKey,
        found: &mut Found,
    ) -> bool {
        found.look_up(tables, key)
    }

    #[inline(always)]
    fn flow<'a, P: Packet>(&'a self, _: &P, found: &'a Found) -> &'a Flow {
        &found.flow
    }
}

/// A plain packet of one family. Its headers are a local value, whose constant fields the compiler knows; its role is a
/// constant of the program.
///
/// At XDP the entry is a local value too: of its fields only those are read that the packet needs. VERIFIER: at tc it
/// is in the working memory, or the verifier would walk a quarter more instructions.
pub(in crate::forward) struct PlainPacket<const V4: bool> {
    pub(in crate::forward) view: View,
    pub(in crate::forward) role: Role,
    pub(in crate::forward) flow: Flow,
}

impl<const V4: bool> Shape for PlainPacket<V4> {
    const PLAIN: bool = true;

    #[inline(always)]
    fn view<'a>(&'a self, _: &'a Headers) -> &'a View {
        &self.view
    }

    #[inline(always)]
    fn role(&self, _: Role) -> Role {
        self.role
    }

    #[inline(always)]
    fn look_up<P: Packet, T: Flows>(
        &mut self,
        packet: &P,
        tables: &T,
        key: &FlowKey,
        found: &mut Found,
    ) -> bool {
        let flow = if packet.is_at_xdp() { &mut self.flow } else { &mut found.flow };
        tables.flow_of::<V4>(key, flow)
    }

    #[inline(always)]
    fn flow<'a, P: Packet>(&'a self, packet: &P, found: &'a Found) -> &'a Flow {
        if packet.is_at_xdp() { &self.flow } else { &found.flow }
    }
}
