//! The packet of the reference programs: read and rewritten by pointer, in as little correct code as possible.

use aya_ebpf::bindings::{BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR};
use aya_ebpf::helpers::generated::bpf_l4_csum_replace;
use aya_ebpf::programs::{TcContext, XdpContext};
use lb_common::checksum::Difference;

/// Words of an IPv4 address.
pub(crate) const V4: usize = 1;
/// Words of an IPv6 address.
pub(crate) const V6: usize = 4;

const ETHERNET: usize = 14;
const UDP: u8 = 17;
const TCP: u8 = 6;

/// Source, destination and ports as they are in the packet; the protocol.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Key<const W: usize> {
    source: [u32; W],
    destination: [u32; W],
    /// Source port, destination port.
    ports: [u16; 2],
    protocol: u32,
}

/// An address and a port; with a protocol where it serves as a key.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Target<const W: usize> {
    address: [u32; W],
    port: u16,
    protocol: u16,
}

impl<const W: usize> Target<W> {
    /// A target without a protocol.
    #[inline(always)]
    pub(crate) const fn new(address: [u32; W], port: u16) -> Self {
        Self { address, port, protocol: 0 }
    }
}

impl<const W: usize> Key<W> {
    #[inline(always)]
    pub(crate) const fn source(&self) -> [u32; W] {
        self.source
    }

    #[inline(always)]
    pub(crate) const fn destination(&self) -> [u32; W] {
        self.destination
    }

    /// Source port, destination port.
    #[inline(always)]
    pub(crate) const fn ports(&self) -> [u16; 2] {
        self.ports
    }

    /// The target to which the client sends.
    #[inline(always)]
    pub(crate) const fn asked(&self) -> Target<W> {
        let [_, port] = self.ports;
        Target { address: self.destination, port, protocol: self.protocol as u16 }
    }

    /// Key of the packets that come back.
    #[inline(always)]
    pub(crate) const fn answer(&self, backend: &Target<W>) -> Self {
        let [port, _] = self.ports;
        Self {
            source: backend.address,
            destination: self.source,
            ports: [backend.port, port],
            protocol: self.protocol,
        }
    }

    /// All fields in one number, so that the compiler cannot leave out reading them.
    #[inline(always)]
    pub(crate) fn sum(&self) -> u32 {
        let mut sum = u32::from(self.ports[0]) + u32::from(self.ports[1]) + self.protocol;
        let mut word = 0;
        while word < W {
            sum |= self.source[word] | self.destination[word];
            word += 1;
        }
        sum
    }
}

/// The packet operations that both hooks provide.
pub(crate) trait Packet {
    /// Addresses of the first byte and of the end.
    fn bounds(&self) -> (usize, usize);
    /// Updates the checksum at an offset.
    fn mend(&self, at: usize, addresses: Difference, ports: Difference, udp: bool) -> Option<()>;
}

impl Packet for TcContext {
    #[inline(always)]
    fn bounds(&self) -> (usize, usize) {
        (self.data(), self.data_end())
    }

    /// Two calls: a partial checksum covers the addresses and not the ports.
    #[inline(always)]
    fn mend(&self, at: usize, addresses: Difference, ports: Difference, udp: bool) -> Option<()> {
        let zero = if udp { u64::from(BPF_F_MARK_MANGLED_0) } else { 0 };
        let both = [(ports, zero), (addresses, zero | u64::from(BPF_F_PSEUDO_HDR))];
        for (change, flags) in both {
            let sum = u64::from(change.wsum());
            // SAFETY: the skb is the program's own context; the helper checks the offset.
            if unsafe { bpf_l4_csum_replace(self.skb.skb, at as u32, 0, sum, flags) } != 0 {
                return None;
            }
        }
        Some(())
    }
}

impl Packet for XdpContext {
    #[inline(always)]
    fn bounds(&self) -> (usize, usize) {
        (self.data(), self.data_end())
    }

    #[inline(always)]
    fn mend(&self, at: usize, addresses: Difference, ports: Difference, udp: bool) -> Option<()> {
        let checksum = field::<_, [u8; 2]>(self, at)?;
        // SAFETY: in bounds, see `field`.
        let old = unsafe { checksum.read_unaligned() };
        if udp && old == [0; 2] {
            return Some(());
        }
        let new = ports.and(addresses).apply(old);
        let new = if udp && new == [0; 2] { [0xff; 2] } else { new };
        // SAFETY: as above.
        unsafe { checksum.write_unaligned(new) };
        Some(())
    }
}

/// A pointer into the packet, if all of `T` lies within it.
#[inline(always)]
fn field<P: Packet, T>(packet: &P, at: usize) -> Option<*mut T> {
    let (start, end) = packet.bounds();
    (start + at + size_of::<T>() <= end).then_some((start + at) as *mut T)
}

#[inline(always)]
fn read<P: Packet, T: Copy>(packet: &P, at: usize) -> Option<T> {
    // SAFETY: in bounds, see `field`; any bytes are a `T` here.
    field::<P, T>(packet, at).map(|field| unsafe { field.read_unaligned() })
}

#[inline(always)]
fn write<P: Packet, T>(packet: &P, at: usize, value: T) -> Option<()> {
    // SAFETY: in bounds, see `field`.
    field::<P, T>(packet, at).map(|field| unsafe { field.write_unaligned(value) })
}

/// The protocol behind the Ethernet header.
#[inline(always)]
pub(crate) fn ether_type<P: Packet>(packet: &P) -> Option<[u8; 2]> {
    read(packet, 12)
}

const fn transport<const W: usize>() -> usize {
    ETHERNET + if W == V4 { 20 } else { 40 }
}

/// TCP or UDP, no options, no fragment.
#[inline(always)]
pub(crate) fn parse<P: Packet, const W: usize>(packet: &P) -> Option<Key<W>> {
    // The farthest field first: one comparison covers the others.
    let ports = read(packet, transport::<W>())?;
    let (addresses, protocol) = if W == V4 {
        let length: u8 = read(packet, ETHERNET)?;
        let piece: [u8; 2] = read(packet, ETHERNET + 6)?;
        if length != 0x45 || piece[0] & 0x3f | piece[1] != 0 {
            return None;
        }
        (ETHERNET + 12, read::<P, u8>(packet, ETHERNET + 9)?)
    } else {
        (ETHERNET + 8, read::<P, u8>(packet, ETHERNET + 6)?)
    };
    if protocol != TCP && protocol != UDP {
        return None;
    }
    Some(Key {
        source: read(packet, addresses)?,
        destination: read(packet, addresses + 4 * W)?,
        ports,
        protocol: u32::from(protocol),
    })
}

/// Selects the source of a packet to be rewritten.
pub(crate) const SOURCE: usize = 0;
/// Selects the destination of a packet to be rewritten.
pub(crate) const TARGET: usize = 1;

/// Rewrites one end of the packet.
#[inline(always)]
pub(crate) fn rewrite<P: Packet, const W: usize, const END: usize>(
    packet: &P,
    key: &Key<W>,
    target: &Target<W>,
) -> Option<()> {
    let old = if END == SOURCE { &key.source } else { &key.destination };
    let mut addresses = Difference::NONE;
    let mut word = 0;
    while word < W {
        addresses = addresses.word(old[word], target.address[word]);
        word += 1;
    }
    let old = key.ports[END];
    let ports = Difference::NONE.replace_u16(old.to_ne_bytes(), target.port.to_ne_bytes());
    let first = ETHERNET + if W == V4 { 12 } else { 8 };
    if W == V4 {
        let checksum: [u8; 2] = read(packet, ETHERNET + 10)?;
        write(packet, ETHERNET + 10, addresses.apply(checksum))?;
    }
    write(packet, first + END * 4 * W, target.address)?;
    write(packet, transport::<W>() + 2 * END, target.port)?;
    let udp = key.protocol == u32::from(UDP);
    packet.mend(transport::<W>() + if udp { 6 } else { 16 }, addresses, ports, udp)
}
