//! Takes packets apart for people: fields with names, and wrong checksums.
//!
//! The module shares no code with the data path, so that a mistake there does not hide itself here.

use std::format;
use std::string::String;
use std::vec::Vec;

use crate::addr::{Ip, Protocol};

/// Number of IPv6's fragment header (RFC 8200 4.5).
pub(super) const FRAGMENT: u8 = 44;

/// The internet checksum of bytes and a partial sum, in host order (RFC 1071).
pub(super) fn internet(bytes: &[u8], start: u32) -> u16 {
    !sum(bytes, start)
}

fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut sum = u64::from(start);
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u64::from(pair.first().copied().unwrap_or(0)) << 8 | u64::from(low);
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Sum of the pseudo-header (RFC 9293 3.1, RFC 8200 8.1).
pub(super) fn pseudo_sum(from: &Ip, to: &Ip, protocol: Protocol, length: usize) -> u32 {
    let ends = if from.is_v4() {
        [from.v4_octets(), to.v4_octets()].concat()
    } else {
        [from.octets(), to.octets()].concat()
    };
    u32::from(sum(&ends, 0)) + u32::from(protocol.0) + length as u32
}

/// CRC32c, bit by bit (RFC 9260 appendix A).
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & 0_u32.wrapping_sub(crc & 1))
        })
    })
}

/// A packet's fields: name, offset, length.
struct Layout {
    fields: Vec<(String, usize, usize)>,
    /// Network offset, transport offset, transport number, whole.
    parts: Option<(usize, usize, u8, bool)>,
}

impl Layout {
    fn add(&mut self, at: usize, names: &[(&str, usize)], prefix: &str) -> usize {
        names.iter().fold(at, |at, (name, length)| {
            self.fields.push((format!("{prefix}{name}"), at, *length));
            at + length
        })
    }
}

const ETHERNET: [(&str, usize); 2] = [("link destination", 6), ("link source", 6)];
const IPV4: [(&str, usize); 10] = [
    ("version and header length", 1),
    ("traffic class", 1),
    ("length", 2),
    ("identification", 2),
    ("fragment", 2),
    ("time to live", 1),
    ("protocol", 1),
    ("header checksum", 2),
    ("source", 4),
    ("destination", 4),
];
const IPV6: [(&str, usize); 6] = [
    ("version, class, label", 4),
    ("length", 2),
    ("next header", 1),
    ("hop limit", 1),
    ("source", 16),
    ("destination", 16),
];
const TCP: [(&str, usize); 9] = [
    ("source port", 2),
    ("destination port", 2),
    ("sequence", 4),
    ("acknowledgement", 4),
    ("data offset", 1),
    ("flags", 1),
    ("window", 2),
    ("checksum", 2),
    ("urgent", 2),
];
const UDP: [(&str, usize); 4] =
    [("source port", 2), ("destination port", 2), ("length", 2), ("checksum", 2)];
const SCTP: [(&str, usize); 4] =
    [("source port", 2), ("destination port", 2), ("tag", 4), ("crc32c", 4)];
const ICMP: [(&str, usize); 4] = [("type", 1), ("code", 1), ("checksum", 2), ("rest", 4)];

fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([byte(bytes, at), byte(bytes, at + 1)])
}

fn layout(bytes: &[u8]) -> Layout {
    let mut layout = Layout { fields: Vec::new(), parts: None };
    let mut at = layout.add(0, &ETHERNET, "");
    while matches!(u16_at(bytes, at), 0x8100 | 0x88a8) {
        at = layout.add(at, &[("tag type", 2), ("tag", 2)], "");
    }
    at = layout.add(at, &[("type", 2)], "");
    let end = network(bytes, at, &mut layout, "");
    layout.fields.push((String::from("payload"), end, usize::MAX - end));
    layout
}

fn network(bytes: &[u8], at: usize, layout: &mut Layout, prefix: &str) -> usize {
    let (mut next, mut end, mut later, mut whole) = (byte(bytes, at + 9), at, false, true);
    if byte(bytes, at) >> 4 == 4 {
        layout.add(at, &IPV4, prefix);
        end += usize::from(byte(bytes, at) & 15) * 4;
        later = u16_at(bytes, at + 6) & 0x1fff != 0;
        whole = !later && u16_at(bytes, at + 6) & 0x2000 == 0;
    } else if byte(bytes, at) >> 4 == 6 {
        next = byte(bytes, at + 6);
        end = layout.add(at, &IPV6, prefix);
        while matches!(next, 0 | 43 | FRAGMENT | 60) && end < bytes.len() {
            let fragment = next == FRAGMENT;
            let length = if fragment { 8 } else { (usize::from(byte(bytes, end + 1)) + 1) * 8 };
            later |= fragment && u16_at(bytes, end + 2) > 7;
            whole &= !fragment;
            next = byte(bytes, end);
            end = layout.add(end, &[("extension", length)], prefix);
        }
    } else {
        return at;
    }
    if prefix.is_empty() {
        layout.parts = Some((at, end, next, whole && !later));
    }
    if later { end } else { transport(bytes, next, end, layout, prefix) }
}

fn transport(bytes: &[u8], next: u8, at: usize, layout: &mut Layout, prefix: &str) -> usize {
    match next {
        6 if prefix.is_empty() => layout.add(at, &TCP, prefix),
        6 | 17 => layout.add(at, &UDP, prefix),
        132 => layout.add(at, &SCTP, prefix),
        1 | 58 => {
            let end = layout.add(at, &ICMP, prefix);
            let quotes = if next == 1 {
                matches!(byte(bytes, at), 3 | 4 | 5 | 11 | 12)
            } else {
                byte(bytes, at) < 5
            };
            if quotes && prefix.is_empty() { network(bytes, end, layout, "quoted ") } else { end }
        }
        _ => at,
    }
}

/// The fields of a packet, with their bytes.
pub fn fields(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let layout = layout(bytes);
    let field = |(name, at, length): (String, usize, usize)| {
        let end = at.saturating_add(length).min(bytes.len());
        let bytes = bytes.get(at..end).unwrap_or_default().to_vec();
        (name, bytes)
    };
    layout.fields.into_iter().map(field).filter(|(_, bytes)| !bytes.is_empty()).collect()
}

/// Names of the checksums of a whole packet that are wrong.
pub fn wrong_checksums(bytes: &[u8]) -> Vec<&'static str> {
    let mut wrong = Vec::new();
    let Some((network, at, next, whole)) = layout(bytes).parts else {
        return wrong;
    };
    let v4 = byte(bytes, network) >> 4 == 4;
    let header = bytes.get(network..at).unwrap_or_default();
    if v4 && internet(header, 0) != 0 {
        wrong.push("header checksum");
    }
    let part = |at: usize, length: usize| bytes.get(at..at + length).unwrap_or_default();
    let address = |at: usize| {
        if v4 {
            part(at, 4).first_chunk().map(|bytes| Ip::v4(*bytes))
        } else {
            part(at, 16).first_chunk().map(|bytes| Ip::v6(*bytes))
        }
    };
    let (from, to) = if v4 { (12, 16) } else { (8, 24) };
    let (Some(from), Some(to)) = (address(network + from), address(network + to)) else {
        return wrong;
    };
    // The padding of a short frame is not part of the packet.
    let length = if v4 { u16_at(bytes, network + 2) } else { u16_at(bytes, network + 4) };
    let end = match (v4, usize::from(length)) {
        (true, 0) => bytes.len(),
        (true, length) => network + length,
        (false, length) => network + 40 + length,
    };
    let body = bytes.get(at..end.min(bytes.len())).unwrap_or_default();
    let pseudo = if next == 1 { 0 } else { pseudo_sum(&from, &to, Protocol(next), body.len()) };
    let right = match next {
        _ if !whole => true,
        17 if v4 && u16_at(body, 6) == 0 => true,
        6 | 17 | 1 | 58 => internet(body, pseudo) == 0,
        132 => {
            let mut zeroed = body.to_vec();
            zeroed.iter_mut().skip(8).take(4).for_each(|byte| *byte = 0);
            body.get(8..12) == Some(crc32c(&zeroed).to_le_bytes().as_slice())
        }
        _ => true,
    };
    if !right {
        wrong.push("transport checksum");
    }
    wrong
}

/// Panics with the fields in which two packets differ.
#[track_caller]
pub fn assert_packet_eq(actual: &[u8], expected: &[u8], context: &str) {
    if actual == expected {
        return;
    }
    let (left, right) = (fields(actual), fields(expected));
    let mut text = format!("{context}: {} bytes, expected {}", actual.len(), expected.len());
    for index in 0..left.len().max(right.len()) {
        match (left.get(index), right.get(index)) {
            (Some(one), Some(other)) if one == other => {}
            (one, other) => text.extend([format!("\n  {one:02x?}\n  expected {other:02x?}")]),
        }
    }
    panic!("{text}");
}
