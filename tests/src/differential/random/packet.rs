//! Random packets: valid, mutated and hostile; independent ones, and ones that quote or follow earlier packets.

use lb_common::addr::{Endpoint, Port, Protocol};
use lb_common::fake::{Datagram, Piece, Transport, at};
use lb_common::wire::tcp;

use super::Random;
use super::ends::{BACKENDS, CLIENTS, FRONTENDS, PIECES};

fn end(random: &mut Random, family: usize) -> Endpoint {
    match random.below(8) {
        0..=3 => at(random.of(FRONTENDS[family])),
        4 | 5 => at(random.of(CLIENTS[family])),
        6 => at(random.of(BACKENDS[family]).0),
        _ => {
            let ip = at(random.of(CLIENTS[family])).ip;
            Endpoint::new(ip, Port::new(61000 + random.below(4001) as u16))
        }
    }
}

fn datagram(random: &mut Random, depth: u32) -> Datagram {
    let family = random.below(2);
    let source =
        if random.one_in(4) { end(random, family) } else { at(random.of(CLIENTS[family])) };
    let destination = end(random, family);
    let flags = random.of(&[2, 2, 2, 16, 16, 17, 4, 18, 0, 0x29, 255]);
    let transport = match random.below(16) {
        0..=5 => Transport::Tcp(flags),
        6..=9 => Transport::Udp(!random.one_in(4)),
        10 | 11 => Transport::Sctp,
        12..=14 => {
            let kind = if family == 0 {
                random.of(&[0, 3, 3, 4, 5, 8, 8, 11, 12])
            } else {
                random.of(&[1, 2, 3, 4, 128, 128, 129, 137])
            };
            Transport::Icmp(kind, random.below(5) as u8)
        }
        _ => Transport::Other(random.next() as u8),
    };
    let mut made = Datagram::new(source, destination, transport);
    made.payload = (0..random.below(64)).map(|_| random.next() as u8).collect();
    if matches!(transport, Transport::Icmp(..)) && depth > 0 && !random.one_in(4) {
        let mut body = vec![0, 0, 5, 0];
        body.extend(datagram(random, depth - 1).network());
        body.truncate(4 + 24 + random.below(80));
        made.payload = body;
    }
    if random.one_in(10) {
        let offset = if random.one_in(2) { 0 } else { 16 };
        made.piece = Some(Piece { offset, more: random.one_in(2), id: random.below(3) as u32 });
    }
    if random.one_in(10) {
        options(random, &mut made);
    }
    if random.one_in(6) {
        let kinds = [0, 43, 60, 60, 44, 135, 51];
        made.extensions = (0..=random.below(7)).map(|_| extension(random, &kinds)).collect();
    }
    let tags = if random.one_in(20) { 1 + random.below(3) } else { 0 };
    for _ in 0..tags {
        made = made.tagged(random.next() as u16);
    }
    made
}

/// Adds IPv4 options or IPv6 extension headers that the data path walks.
fn options(random: &mut Random, made: &mut Datagram) {
    made.options = vec![1; 4 * (1 + random.below(10))];
    let count = 1 + random.below(3);
    made.extensions = (0..count).map(|_| extension(random, &[0, 43, 60])).collect();
}

fn extension(random: &mut Random, kinds: &[u8]) -> (u8, Vec<u8>) {
    let mut rest = vec![0; 6 + 8 * random.below(3)];
    rest[1] = u8::from(random.one_in(8));
    (random.of(kinds), rest)
}

fn piece(random: &mut Random) -> Datagram {
    let family = random.below(2);
    let [from, cluster, node] = PIECES[family];
    let [from, to] = [from, random.of(&[cluster, node])].map(at);
    let offset = random.of(&[0, 0, 16, 32]);
    let made = Datagram::new(from, to, Transport::Udp(true)).with(&[7; 16]);
    made.piece(offset, offset < 32, random.below(2) as u32)
}

/// Swaps source and destination and turns a SYN into a SYN-ACK; the checksums stay correct.
pub(super) fn answer(packet: &mut [u8]) {
    let Some(ethernet) = packet.get(12..14) else { return };
    let is_v4 = ethernet == [8, 0];
    let (from, length, ports) = if is_v4 { (26, 4, 34) } else { (22, 16, 54) };
    let protocol = packet.get(if is_v4 { 23 } else { 20 }).copied();
    if protocol == Some(Protocol::TCP.0)
        && let Some([flags, _, _, high, low]) = packet.get_mut(ports + 13..ports + 18)
        && *flags == tcp::SYN
    {
        *flags |= tcp::ACK;
        let sum = u16::from_be_bytes([*high, *low]);
        // In one's complement: the sum decreases by what the word grows.
        let (less, wraps) = sum.overflowing_sub(tcp::ACK.into());
        [*high, *low] = (less - u16::from(wraps)).to_be_bytes();
    }
    if packet.len() >= ports + 4 {
        for (at, width) in [(from, length), (ports, 2)] {
            let (left, right) = packet[at..at + 2 * width].split_at_mut(width);
            left.swap_with_slice(right);
        }
    }
}

fn mutate(random: &mut Random, packet: &mut Vec<u8>) {
    if random.one_in(8) {
        for _ in 0..=random.below(3) {
            let at = 12 + random.below(packet.len().min(100) - 12);
            packet[at] = random.next() as u8;
        }
    }
    if random.one_in(32) {
        map(random, packet);
    }
    if random.one_in(16) {
        packet.truncate(14 + random.below(packet.len() - 13));
    }
    if random.one_in(32) {
        packet.extend((0..random.below(40)).map(|_| 0xee));
    }
}

/// Gives an IPv6 packet IPv4-mapped addresses, which exist in sockets but never on a wire.
fn map(random: &mut Random, packet: &mut [u8]) {
    let ends = [at(random.of(CLIENTS[0])), end(random, 0)];
    if packet.get(12..14) == Some(&[0x86, 0xdd]) && packet.len() >= 58 {
        for (number, end) in ends.iter().enumerate() {
            if !random.one_in(4) {
                let (address, port) = (22 + 16 * number, 54 + 2 * number);
                packet[address..address + 16].copy_from_slice(&end.ip.octets());
                packet[port..port + 2].copy_from_slice(&end.port.octets());
            }
        }
    }
}

/// A random packet: independent, or an ICMP error about an earlier packet or a packet that follows it.
pub(super) fn packet(random: &mut Random, seen: &[Vec<u8>]) -> Vec<u8> {
    let mut packet = match random.below(8) {
        0..=2 if !seen.is_empty() => {
            let mut packet = seen[random.below(seen.len())].clone();
            answer(&mut packet);
            packet
        }
        3 | 4 if !seen.is_empty() => seen[random.below(seen.len())].clone(),
        // An ICMP error about an earlier packet.
        5 if !seen.is_empty() && random.one_in(2) => {
            let quoted = seen[random.below(seen.len())].clone();
            error_about(random, &quoted)
        }
        // Fragments of only a few datagrams, so that they belong together.
        6 if random.one_in(2) => piece(random).build(),
        _ => datagram(random, 1).build(),
    };
    if packet.len() > 14 {
        mutate(random, &mut packet);
    }
    packet
}

/// Adds options or extension headers to a packet without any: an ICMP error that quotes it is translated if its flow is
/// known.
fn widen(random: &mut Random, quote: &mut Vec<u8>) {
    let words = 1 + random.below(10);
    if quote.first() == Some(&0x45) && quote.len() >= 20 {
        quote[0] += words as u8;
        drop(quote.splice(20..20, vec![1; 4 * words]));
    } else if quote.len() >= 40 {
        let next = std::mem::replace(&mut quote[6], 60);
        let units = random.below(4);
        let header = [vec![next, units as u8], vec![0; 6 + 8 * units]].concat();
        drop(quote.splice(40..40, header));
    }
}

fn error_about(random: &mut Random, quoted: &[u8]) -> Vec<u8> {
    let family = usize::from(quoted.get(12..14) != Some(&[8, 0]));
    let mut quote: Vec<u8> = quoted.iter().skip(14).take(28 + random.below(120)).copied().collect();
    if random.one_in(3) {
        widen(random, &mut quote);
    }
    let body = [&[0, 0, 5, 0], quote.as_slice()].concat();
    let kind = if family == 0 { random.of(&[3, 11, 5]) } else { random.of(&[1, 2, 3]) };
    let client = random.of(CLIENTS[family]);
    let mut made = Datagram::new(end(random, family), at(client), Transport::Icmp(kind, 1));
    made.payload = body;
    if random.one_in(3) {
        options(random, &mut made);
    }
    let mut packet = made.build();
    // The error often has the addresses of the packet that it quotes.
    let (from, length) = if family == 0 { (26, 4) } else { (22, 16) };
    if !random.one_in(3) && quoted.len() >= from + 2 * length {
        packet[from + length..from + 2 * length].copy_from_slice(&quoted[from..from + length]);
        if random.one_in(2) {
            packet[from..from + length].copy_from_slice(&quoted[from + length..from + 2 * length]);
        }
    }
    packet
}
