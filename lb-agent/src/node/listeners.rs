//! Finds sockets of this host that listen on a specific address.
//!
//! Sockets on the wildcard address do not count: they are not meant for a `ClusterIP`.

use std::collections::BTreeSet;
use std::io::Result;

use lb_common::addr::Protocol;
use lb_common::service::Frontend;

use super::sockets::{self, WalkStep};

/// Returns those of the frontends on which a process of this host listens.
pub fn of(asked: &BTreeSet<Frontend>) -> Result<BTreeSet<Frontend>> {
    let mut found = BTreeSet::new();
    if asked.is_empty() {
        return Ok(found);
    }
    sockets::walk(|socket| {
        if socket.waits && asked.contains(&socket.local) {
            found.insert(socket.local);
        }
        // Listening TCP sockets come first in the table, so thousands of others are not read.
        if socket.waits || socket.local.protocol != Protocol::TCP {
            WalkStep::Row
        } else {
            WalkStep::Table
        }
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};

    use lb_common::addr::Port;

    use super::*;

    #[test]
    fn sockets_at_an_address_are_found_and_those_at_the_wildcard_are_not() -> Result<()> {
        for ip in ["127.0.0.53", "::1"] {
            let tcp = TcpListener::bind((ip, 0))?;
            let udp = UdpSocket::bind((ip, 0))?;
            let everywhere = TcpListener::bind(("0.0.0.0", 0))?;
            let _stream = TcpStream::connect(tcp.local_addr()?)?;
            let at = |port, protocol| {
                let ip: IpAddr = ip.parse().expect("an address");
                Frontend::new(ip.into(), Port::new(port), protocol)
            };
            let listening = BTreeSet::from([
                at(tcp.local_addr()?.port(), Protocol::TCP),
                at(udp.local_addr()?.port(), Protocol::UDP),
            ]);
            let mut asked = listening.clone();
            asked.insert(at(everywhere.local_addr()?.port(), Protocol::TCP));
            asked.insert(at(1, Protocol::UDP));
            assert_eq!(of(&asked)?, listening, "{ip}");
        }
        Ok(())
    }
}
