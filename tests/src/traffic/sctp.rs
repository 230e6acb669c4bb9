//! SCTP over raw sockets: a kernel without SCTP sockets forwards SCTP packets all the same.
//!
//! It deliberately shares no code with the data path: the checksum is computed here, bit by bit.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use crate::topology::Member;

/// The deadline for a packet. Within one machine, packets take microseconds.
const PATIENCE: Duration = Duration::from_secs(15);
/// The chunk types of a handshake (RFC 9260 3.3): INIT, INIT ACK, COOKIE ECHO, COOKIE ACK.
const HANDSHAKE: [u8; 4] = [1, 2, 10, 11];
/// The verification tags of client and server.
const TAGS: [u32; 2] = [0x1111_1111, 0x2222_2222];

/// One end of an association: an address and a port of a member.
#[derive(Debug)]
pub struct Sctp {
    socket: Socket,
    own: SocketAddr,
}

/// A packet as it arrived.
#[derive(Debug)]
struct Arrived {
    from: SocketAddr,
    tag: u32,
    kind: u8,
}

impl Sctp {
    /// Opens an end in the namespace of a member.
    pub fn open(member: &Member, own: SocketAddr) -> Result<Self> {
        let open = || -> io::Result<Socket> {
            let domain = Domain::for_address(own);
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_SCTP)))?;
            socket.bind(&SocketAddr::new(own.ip(), 0).into())?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok(socket)
        };
        let opened = member.netns().run_in(open)?;
        let socket = opened.with_context(|| format!("{} opens raw SCTP", member.name()))?;
        Ok(Self { socket, own })
    }

    /// Performs a handshake with `server` through `frontend`, and returns the client address that the server saw. Every
    /// packet must arrive with the right ports, the right checksum, and the expected source address.
    pub fn associate(&self, server: &Self, frontend: SocketAddr) -> Result<SocketAddr> {
        let mut seen = None;
        for (index, kind) in HANDSHAKE.into_iter().enumerate() {
            let [clients, servers] = TAGS;
            let is_question = index % 2 == 0;
            let (sender, receiver) = if is_question { (self, server) } else { (server, self) };
            let (to, tag) = match (is_question, seen) {
                (true, None) => (frontend, 0),
                (true, Some(_)) => (frontend, servers),
                (false, Some(client)) => (client, clients),
                (false, None) => bail!("an answer without a question"),
            };
            sender.send(to, tag, &chunk(kind))?;
            let what = || format!("chunk {kind} of {} to {to}", sender.own);
            let arrived = receiver.receive().with_context(what)?;
            ensure!((arrived.kind, arrived.tag) == (kind, tag), "{}: {arrived:?}", what());
            if is_question {
                let before = *seen.get_or_insert(arrived.from);
                ensure!(before == arrived.from, "{}: the server saw {before} before", what());
            } else {
                ensure!(arrived.from == frontend, "{}: from {}", what(), arrived.from);
            }
        }
        seen.context("no question")
    }

    fn send(&self, to: SocketAddr, tag: u32, chunk: &[u8]) -> Result<()> {
        let mut packet = [self.own.port(), to.port()].map(u16::to_be_bytes).concat();
        packet.extend(tag.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(chunk);
        let sum = crc32c(&packet).to_le_bytes();
        packet.splice(8..12, sum).for_each(drop);
        // A raw IPv6 socket accepts no port.
        let sent = self.socket.send_to(&packet, &SocketAddr::new(to.ip(), 0).into())?;
        ensure!(sent == packet.len(), "{sent} of {} bytes were sent", packet.len());
        Ok(())
    }

    /// Waits for a packet to this port; packets to other ports belong to other ends of the member.
    fn receive(&self) -> Result<Arrived> {
        let began = Instant::now();
        let mut buffer = [MaybeUninit::<u8>::uninit(); 2_048];
        while began.elapsed() < PATIENCE {
            let (length, from) = self.socket.recv_from(&mut buffer).context("no packet")?;
            // SAFETY: the kernel has written that many bytes.
            let bytes: Vec<u8> =
                buffer.iter().take(length).map(|b| unsafe { b.assume_init() }).collect();
            let from = from.as_socket().context("an address")?.ip();
            if let Some(arrived) = read(&bytes, from, self.own.port())? {
                return Ok(arrived);
            }
        }
        bail!("no packet to port {}", self.own.port())
    }
}

/// Parses a packet; `None` if it is for another port.
fn read(bytes: &[u8], from: IpAddr, port: u16) -> Result<Option<Arrived>> {
    // A raw IPv4 socket delivers the IP header as well.
    let header = match (from, bytes.first()) {
        (IpAddr::V4(_), Some(first)) => usize::from(first & 15) * 4,
        _ => 0,
    };
    let packet = bytes.get(header..).unwrap_or_default();
    let (Some(head), Some(kind)) = (packet.first_chunk::<12>(), packet.get(12)) else {
        bail!("{} bytes are no packet", packet.len());
    };
    let [s0, s1, d0, d1, t0, t1, t2, t3, sum @ ..] = *head;
    if u16::from_be_bytes([d0, d1]) != port {
        return Ok(None);
    }
    let mut bare = packet.to_vec();
    bare.splice(8..12, [0; 4]).for_each(drop);
    let expected = crc32c(&bare).to_le_bytes();
    ensure!(sum == expected, "checksum {sum:02x?} from {from}, not {expected:02x?}");
    Ok(Some(Arrived {
        from: SocketAddr::new(from, u16::from_be_bytes([s0, s1])),
        tag: u32::from_be_bytes([t0, t1, t2, t3]),
        kind: *kind,
    }))
}

/// A chunk with the fields that connection tracking checks.
fn chunk(kind: u8) -> Vec<u8> {
    let [clients, servers] = TAGS;
    let begin = |tag: u32| {
        let mut body = tag.to_be_bytes().to_vec();
        // Window, outgoing and incoming streams, initial TSN.
        body.extend([0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
        body
    };
    let body = match kind {
        1 => begin(clients),
        // INIT ACK carries a cookie.
        2 => [begin(servers), vec![0, 7, 0, 8, 1, 2, 3, 4]].concat(),
        10 => vec![1, 2, 3, 4],
        _ => Vec::new(),
    };
    let length = (4 + body.len()) as u16;
    [&[kind, 0][..], &length.to_be_bytes(), &body].concat()
}

/// CRC32c, bit by bit (RFC 9260 appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 0 { 0 } else { 0x82f6_3b78 };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_is_right() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
