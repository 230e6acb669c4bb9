//! `sock_diag(7)`, as far as it lists connected UDP sockets and ends one: `SOCK_DIAG_BY_FAMILY`, `SOCK_DESTROY`.
//!
//! Numbers of the netlink layer are in native order, addresses and ports as on the wire. Decides nothing.

use std::io;

use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};

use crate::netlink::{ACKNOWLEDGE, DONE, DUMP, ERROR, message, next, verdict};

/// `linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;
const DESTROY: u16 = 21;
/// `TCP_ESTABLISHED`, which a connected UDP socket is in too.
const CONNECTED: u32 = 1;
/// Length of `struct inet_diag_sockid`: ports, addresses, device, cookie.
const IDENTITY: usize = 48;
/// Where `struct inet_diag_msg` has it.
const IDENTITY_AT: usize = 4;

/// A connected UDP socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connected {
    /// `SO_COOKIE`, by which `SOCKETS` knows it.
    pub(super) cookie: u64,
    /// Whom it talks to.
    pub(super) to: Endpoint,
    /// `AF_INET` or `AF_INET6`.
    pub(super) family: u8,
    /// `struct inet_diag_sockid`, as the kernel wrote it.
    pub(super) identity: [u8; IDENTITY],
}

impl Default for Connected {
    fn default() -> Self {
        Self { cookie: 0, to: Endpoint::default(), family: 0, identity: [0; IDENTITY] }
    }
}

/// A conversation with the kernel.
pub(super) struct Diagnosis {
    socket: Socket,
}

impl Diagnosis {
    pub(super) fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
        let _own: SocketAddr = socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket })
    }

    /// Lists the connected UDP sockets of the namespace, both families.
    pub(super) fn connected(&mut self) -> io::Result<Vec<Connected>> {
        let mut all = Vec::new();
        for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
            let any = [0; IDENTITY];
            let _: usize = self.socket.send(&request(BY_FAMILY, DUMP, family, &any), 0)?;
            while self.hear(|body| all.extend(read(body)))?.is_none() {}
        }
        Ok(all)
    }

    /// Ends a socket for its process; false when it is not there any more.
    pub(super) fn end(&mut self, socket: &Connected) -> io::Result<bool> {
        let order = request(DESTROY, ACKNOWLEDGE, socket.family, &socket.identity);
        let _: usize = self.socket.send(&order, 0)?;
        loop {
            match self.hear(|_| {}) {
                Ok(None) => {}
                Ok(Some(())) => return Ok(true),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes one datagram of answers; something once the request is done with.
    fn hear(&mut self, mut see: impl FnMut(&[u8])) -> io::Result<Option<()>> {
        let (datagram, _from) = self.socket.recv_from_full()?;
        let mut rest = datagram.as_slice();
        while let Some((kind, body)) = next(&mut rest) {
            match kind {
                DONE => return Ok(Some(())),
                ERROR => return verdict(body).map(Some),
                _ => see(body),
            }
        }
        Ok(None)
    }
}

/// With `struct inet_diag_req_v2`.
fn request(kind: u16, flags: u16, family: u8, identity: &[u8; IDENTITY]) -> Vec<u8> {
    let mut body = vec![family, Protocol::UDP.0, 0, 0];
    body.extend((1_u32 << CONNECTED).to_ne_bytes());
    body.extend(identity);
    message(kind, flags, &body)
}

/// `struct inet_diag_msg`.
fn read(body: &[u8]) -> Option<Connected> {
    let family = *body.first()?;
    let identity: [u8; IDENTITY] = *body.get(IDENTITY_AT..)?.first_chunk()?;
    let port = Port::from_wire(*identity.get(2..)?.first_chunk()?);
    let address = identity.get(20..)?;
    let ip = if i32::from(family) == libc::AF_INET {
        Ip::v4(*address.first_chunk()?)
    } else {
        Ip::v6(*address.first_chunk()?)
    };
    // Two words, the lower one first.
    let low = u32::from_ne_bytes(*identity.get(40..)?.first_chunk()?);
    let high = u32::from_ne_bytes(*identity.get(44..)?.first_chunk()?);
    let cookie = (u64::from(high) << 32) | u64::from(low);
    Some(Connected { cookie, to: Endpoint::new(ip, port), family, identity })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn pair(address: &str) -> (UdpSocket, UdpSocket) {
        let [one, other] = [(); 2].map(|()| UdpSocket::bind((address, 0)).expect("loopback"));
        one.connect(other.local_addr().expect("bound")).expect("loopback");
        (one, other)
    }

    #[test]
    fn a_connected_socket_is_listed_and_an_unconnected_one_is_not() {
        let mut diagnosis = Diagnosis::new().expect("netlink");
        let (one, other) = pair("127.0.0.1");
        let port = |socket: &UdpSocket| Port::new(socket.local_addr().expect("bound").port());
        let all = diagnosis.connected().expect("a list");
        let to = Endpoint::new(Ip::v4([127, 0, 0, 1]), port(&other));
        let own = port(&one).octets();
        let found: Vec<_> = all.iter().filter(|socket| socket.to == to).collect();
        assert_eq!(found.len(), 1, "{all:?}");
        assert!(found.iter().all(|socket| socket.identity.starts_with(&own) && socket.cookie != 0));
        let other = port(&other).octets();
        assert!(!all.iter().any(|socket| socket.identity.starts_with(&other)), "{all:?}");
    }
}
