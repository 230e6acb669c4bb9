//! Questions as handmade packets, from the IP header on: fragments in any order, options, unusual headers.
//!
//! Answers arrive at an ordinary socket that is bound to the source port of the packets.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_common::fake::{Datagram, Piece, Transport, at};
use socket2::{Domain, Protocol, Socket, Type};

use crate::topology::Member;

/// The deadline for an answer. Within one machine, answers take microseconds.
const PATIENCE: Duration = Duration::from_secs(15);
/// `IPPROTO_RAW`: packets include their IP header.
const WITH_HEADER: i32 = libc::IPPROTO_RAW;

/// A UDP socket of a member, and a raw socket beside it.
#[derive(Debug)]
pub struct Handmade {
    raw: Socket,
    socket: UdpSocket,
    from: SocketAddr,
}

impl Handmade {
    /// Opens both sockets in the namespace of a member. Its sockets must not be translated by socket hooks.
    pub fn open(member: &Member, from: SocketAddr) -> Result<Self> {
        let open = || -> io::Result<(Socket, UdpSocket)> {
            let raw = Socket::new(
                Domain::for_address(from),
                Type::RAW,
                Some(Protocol::from(WITH_HEADER)),
            )?;
            let socket = UdpSocket::bind(from)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            Ok((raw, socket))
        };
        let opened = member.netns().run_in(open)?;
        let (raw, socket) = opened.with_context(|| format!("{} sends raw", member.name()))?;
        Ok(Self { raw, socket, from })
    }

    /// Makes a question of `size` bytes, as a datagram.
    pub fn question(&self, to: SocketAddr, size: usize) -> Datagram {
        let mut payload = b"ask 0 ".to_vec();
        payload.resize(size.max(7) - 1, b'.');
        payload.push(b'\n');
        let [from, to] = [self.from, to].map(|end| at(&end.to_string()));
        Datagram::new(from, to, Transport::Udp(true)).with(&payload)
    }

    /// Sends a datagram unchanged.
    pub fn send(&self, datagram: &Datagram, to: SocketAddr) -> Result<()> {
        self.send_bytes(&datagram.network(), to)
    }

    /// Sends a datagram with another last byte, which makes its checksum wrong.
    pub fn send_spoiled(&self, datagram: &Datagram, to: SocketAddr) -> Result<()> {
        let mut packet = datagram.network();
        *packet.last_mut().context("a payload")? ^= 1;
        self.send_bytes(&packet, to)
    }

    /// Sends a datagram with a hop limit.
    pub fn send_far(&self, datagram: &Datagram, to: SocketAddr, hops: u8) -> Result<()> {
        let mut packet = datagram.network();
        // The kernel computes the header checksum of IPv4.
        let at = if to.is_ipv4() { 8 } else { 7 };
        *packet.get_mut(at).context("a whole header")? = hops;
        self.send_bytes(&packet, to)
    }

    fn send_bytes(&self, packet: &[u8], to: SocketAddr) -> Result<()> {
        // A raw IPv6 socket accepts no port.
        let to = SocketAddr::new(to.ip(), 0);
        let sent = self.raw.send_to(packet, &to.into()).with_context(|| format!("raw to {to}"))?;
        ensure!(sent == packet.len(), "{sent} of {} bytes were sent", packet.len());
        Ok(())
    }

    /// Waits for a datagram, and returns its sender.
    pub fn asked(&self) -> Result<SocketAddr> {
        Ok(self.socket.recv_from(&mut [0]).context("no question")?.1)
    }

    /// Waits for the answer to a question of `size` bytes, which must come from `to`.
    pub fn answer(&self, to: SocketAddr, size: usize) -> Result<()> {
        let mut bytes = [0; 1_024];
        let (length, peer) = self.socket.recv_from(&mut bytes).context("no answer")?;
        let text = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()).into_owned();
        ensure!(peer == to, "{peer} answered, not {to}: {text}");
        let received = text.split_ascii_whitespace().nth(2).map(str::to_owned);
        ensure!(received == Some(size.to_string()), "of {size} bytes: {text}");
        Ok(())
    }
}

/// The fragments of a datagram, each with `size` bytes (a multiple of 8) of what is cut.
///
/// Every fragment repeats the IP header with its options and `extensions`; `fragmented_extensions` are cut with the
/// rest (RFC 8200 4.5).
pub fn pieces(whole: &Datagram, size: usize, id: u32) -> Vec<Datagram> {
    let length = |headers: &[(u8, Vec<u8>)]| -> usize {
        headers.iter().map(|(_, rest)| 2 + rest.len()).sum()
    };
    let (repeated, cut) = if whole.source.ip.is_v4() {
        (20 + whole.options.len(), 0)
    } else {
        (40 + length(&whole.extensions), length(&whole.fragmented_extensions))
    };
    let network = whole.network();
    let body = network.get(repeated..).unwrap_or_default();
    let count = body.chunks(size).count();
    let piece = |(index, chunk): (usize, &[u8])| {
        let piece = Piece { offset: (index * size) as u16, more: index + 1 < count, id };
        let part = Datagram {
            transport: Transport::Other(whole.protocol().0),
            piece: Some(piece),
            ..whole.clone()
        };
        // The first fragment writes the headers that are cut by itself.
        let written = if index == 0 { cut } else { 0 };
        part.with(chunk.get(written..).unwrap_or_default())
    };
    body.chunks(size).enumerate().map(piece).collect()
}
