//! A packet of plain bytes that behaves as an skb or as an XDP frame does in the kernel.

use core::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::vec;
use std::vec::Vec;

use crate::addr::{Ip, Protocol};
use crate::checksum::Difference;
use crate::flow::{Held, Tuple};
use crate::forward::Parts;
use crate::hook::{Hooked, Point};
use crate::l3::{L3, Typed};
use crate::packet::{Covered, Packet};
use crate::route::{Route, RouteResult, Traffic};
use crate::tables::Tables;
use crate::wire::ETHERNET;

/// The kind of packet that the bytes imitate: the two kinds refuse different operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// An skb (tc). Opens no room in a packet whose VLAN tag is in its bytes: the kernel knows no such
    /// protocol there.
    Skb,
    /// An XDP frame.
    Frame,
}

/// A packet of bytes, with all checksums complete.
#[derive(Clone, Debug)]
pub struct Bytes {
    /// The packet, from its link-layer header on, or from its IP header where it has none.
    pub data: Vec<u8>,
    /// The `EtherType` of a packet without a link-layer header.
    pub l3: Option<[u8; 2]>,
    /// The kind of packet that the bytes imitate.
    pub home: Home,
    /// The interface that it came in by or goes out by.
    pub device: u32,
    /// Whether this host created it.
    pub from_host: bool,
    /// Whether a program has marked it ([`Hooked::mark_masqueraded`]).
    pub masqueraded: bool,
    /// Number of copies that were queued at the ingress again.
    pub copies: u32,
    /// The kernel's routes: see [`KnownRoute`].
    pub routes: BTreeMap<Ip, KnownRoute>,
    /// Packets that arrive for sockets of this node: see [`Hooked::has_socket`].
    pub sockets: BTreeSet<(Protocol, Tuple)>,
    /// Payload bytes of each packet into which an interface will split it: see [`Packet::segment`].
    pub segment: usize,
    /// The last question for the route of a forwarded packet, without its addresses.
    pub asked: Cell<Option<Traffic>>,
}

/// The kernel's route for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownRoute {
    /// Largest IP packet.
    pub mtu: u16,
    /// The route; `None` as long as the next hop's link-layer address is not resolved.
    pub route: Option<Route>,
    /// The interface by which packets of this node itself leave.
    pub device: u32,
    /// The source address of packets of this node itself.
    pub source: Ip,
}

impl Bytes {
    /// A packet on interface 1 that another host sent.
    pub const fn new(data: Vec<u8>, home: Home) -> Self {
        Self {
            data,
            l3: None,
            home,
            device: 1,
            from_host: false,
            masqueraded: false,
            copies: 0,
            routes: BTreeMap::new(),
            sockets: BTreeSet::new(),
            segment: 0,
            asked: Cell::new(None),
        }
    }

    const fn kind(&self) -> u32 {
        if self.l3.is_some() { Held::L3 } else { 0 }
    }

    fn part<const N: usize>(&mut self, at: usize) -> Option<&mut [u8; N]> {
        self.data.get_mut(at..)?.first_chunk_mut()
    }
}

impl Typed for Bytes {
    fn ether_type(&self) -> [u8; 2] {
        self.l3.unwrap_or_default()
    }
}

impl Hooked for Bytes {
    fn point(&self) -> Point {
        if self.home == Home::Frame { Point::Xdp } else { Point::Tc }
    }

    fn requeue(&mut self) -> Option<()> {
        self.copies += 1;
        Some(())
    }

    fn route(&self, tuple: &Tuple, _: Protocol, traffic: Traffic, into: &mut Route) -> RouteResult {
        self.asked.set(Some(traffic));
        match self.routes.get(&tuple.destination) {
            _ if traffic.v4 != tuple.destination.is_v4() => RouteResult::None,
            None => RouteResult::None,
            Some(known) if traffic.length > known.mtu => RouteResult::TooBig,
            Some(KnownRoute { route: None, .. }) => RouteResult::NoNeighbour,
            Some(KnownRoute { route: Some(route), .. }) => {
                *into = *route;
                RouteResult::Known
            }
        }
    }

    fn route_of_host(
        &self,
        tuple: &Tuple,
        _: Protocol,
        length: u16,
        into: &mut Route,
    ) -> RouteResult {
        let Some(known) = self.routes.get(&tuple.destination) else { return RouteResult::None };
        into.device = known.device;
        if length > known.mtu {
            into.mtu = known.mtu.into();
            return RouteResult::TooBig;
        }
        if known.route.is_none() {
            return RouteResult::NoNeighbour;
        }
        into.gateway = tuple.destination;
        RouteResult::Known
    }

    fn source(&self, tuple: &Tuple, _: Protocol, device: u32) -> Option<Ip> {
        let known = self.routes.get(&tuple.destination)?;
        (known.device == device).then_some(known.source)
    }

    fn has_socket(&self, tuple: &Tuple, protocol: Protocol) -> bool {
        self.sockets.contains(&(protocol, *tuple))
    }

    fn device(&self) -> u32 {
        self.device
    }

    fn is_from_host(&self) -> bool {
        self.from_host
    }

    fn mark_masqueraded(&mut self) {
        self.masqueraded = true;
    }

    fn is_masqueraded(&self) -> bool {
        self.masqueraded
    }
}

impl Packet for Bytes {
    fn has_tags(&self) -> bool {
        self.home == Home::Frame
    }

    fn is_tagged(&self) -> bool {
        false
    }

    fn is_of_vlan(&self) -> bool {
        false
    }

    fn read<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.data.get(at..)?.first_chunk().copied()
    }

    fn words<const N: usize>(&self, at: usize) -> Option<[u32; N]> {
        let bytes = self.data.get(at..at + 4 * N)?;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes(*bytes.first_chunk()?);
        }
        Some(words)
    }

    fn u64s<const N: usize>(&self, at: usize) -> Option<[u64; N]> {
        let bytes = self.data.get(at..at + 8 * N)?;
        let mut u64s = [0; N];
        for (value, bytes) in u64s.iter_mut().zip(bytes.chunks_exact(8)) {
            *value = u64::from_ne_bytes(*bytes.first_chunk()?);
        }
        Some(u64s)
    }

    fn read_at<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.read(at)
    }

    fn write<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> Option<()> {
        *self.part(at)? = bytes;
        Some(())
    }

    fn set_words<const N: usize>(&mut self, at: usize, words: [u32; N]) -> Option<()> {
        let place = self.data.get_mut(at..at + 4 * N)?;
        for (place, word) in place.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        Some(())
    }

    fn set_u64s<const N: usize>(&mut self, at: usize, u64s: [u64; N]) -> Option<()> {
        let place = self.data.get_mut(at..at + 8 * N)?;
        for (place, value) in place.chunks_exact_mut(8).zip(u64s) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
        Some(())
    }

    fn write_at<const N: usize>(&mut self, at: usize, bytes: [u8; N]) -> Option<()> {
        self.write(at, bytes)
    }

    fn checksum(
        &mut self,
        at: usize,
        change: Difference,
        _covered: Covered,
        zero_is_none: bool,
    ) -> Option<()> {
        let old: [u8; 2] = self.read(at)?;
        if zero_is_none && old == [0; 2] {
            return Some(());
        }
        let new = change.apply(old);
        self.write(at, if zero_is_none && new == [0; 2] { [0xff; 2] } else { new })
    }

    fn summed(&mut self, _change: Difference) {}

    fn checksum_at(
        &mut self,
        at: usize,
        change: Difference,
        covered: Covered,
        zero_is_none: bool,
    ) -> Option<()> {
        self.checksum(at, change, covered, zero_is_none)
    }

    fn reshape(&mut self, keep: usize, link: usize, room: usize) -> Option<()> {
        if keep > self.data.len() {
            return None;
        }
        self.data.truncate(keep);
        if self.home == Home::Skb && link > ETHERNET {
            return None;
        }
        drop(self.data.splice(link..link, vec![0; room]));
        Some(())
    }

    fn keep(&self, into: &mut Held) -> Option<()> {
        into.bytes.get_mut(..self.data.len())?.copy_from_slice(&self.data);
        into.length = self.data.len() as u32 | self.kind();
        Some(())
    }

    fn become_held(&mut self, held: &Held) -> Option<()> {
        if held.length & Held::L3 != self.kind() {
            return None;
        }
        self.data = held.bytes.get(..(held.length & !Held::L3) as usize)?.to_vec();
        Some(())
    }

    fn length(&self) -> usize {
        self.data.len()
    }

    fn segment(&self) -> usize {
        self.segment
    }
}

impl<T: Tables> Parts<T> for Bytes {}

impl<T: Tables> Parts<T> for L3<Bytes> {}
