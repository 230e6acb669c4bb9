//! A ping through the kernel's ping sockets: the answer must be complete, come from the address that was pinged, and
//! carry the payload that was sent.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use socket2::{Domain, Protocol, Socket, Type};

use crate::topology::Member;

/// The deadline for an answer, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);
/// The length of the ICMP echo header: type, code, checksum, identifier, sequence number.
const HEADER: usize = 8;
/// The largest possible answer, in bytes.
const LARGEST: usize = 65_536;

/// Pings an address with `size` bytes of payload, and waits for the answer.
pub fn ping(from: &Member, to: IpAddr, size: usize) -> Result<()> {
    // The setting belongs to the namespace; that of IPv4 also applies to IPv6.
    from.netns().sysctl("net.ipv4.ping_group_range", "0 0")?;
    let (domain, protocol, asks, answers) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8, 0),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
    };
    let payload: Vec<u8> = (0..=u8::MAX).cycle().take(size).collect();
    let exchange = || -> io::Result<(Vec<u8>, SocketAddr)> {
        let socket: UdpSocket = Socket::new(domain, Type::DGRAM, Some(protocol))?.into();
        socket.set_read_timeout(Some(PATIENCE))?;
        let question = [&[asks, 0, 0, 0, 0, 0, 0, 1], payload.as_slice()].concat();
        // Only a connected socket reports that it was refused.
        socket.connect(SocketAddr::new(to, 0))?;
        let sent = socket.send(&question)?;
        let mut answer = vec![0; LARGEST];
        let (length, peer) = socket.recv_from(&mut answer)?;
        answer.truncate(if sent == question.len() { length } else { 0 });
        Ok((answer, peer))
    };
    let what = format!("{} pings {to} with {size} bytes", from.name());
    let (answer, peer) = from.netns().run_in(exchange)?.with_context(|| what.clone())?;
    ensure!(peer.ip() == to, "{what}: {peer} answers");
    ensure!(answer.first() == Some(&answers), "{what}: {:?}", answer.first());
    ensure!(answer.get(HEADER..) == Some(payload.as_slice()), "{what}: {} bytes", answer.len());
    Ok(())
}
