//! Sockets of this host that wait for packets at one address: `/proc/net/tcp` and its like
//! (`Documentation/networking/proc_net_tcp.rst`).
//!
//! Sockets at the wildcard address do not count: they have nothing to do with a ClusterIP.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Result};

use lb_common::addr::{Ip, Port, Protocol};
use lb_common::service::Frontend;

/// `TCP_LISTEN` of `net/tcp_states.h`, ...
const LISTEN: &str = "0A";
/// ... and `TCP_CLOSE`, which UDP sockets without a peer have.
const UNCONNECTED: &str = "07";

/// The tables of the kernel, IPv4 and IPv6.
const TABLES: [(&str, Protocol, &str); 4] = [
    ("/proc/self/net/tcp", Protocol::TCP, LISTEN),
    ("/proc/self/net/tcp6", Protocol::TCP, LISTEN),
    ("/proc/self/net/udp", Protocol::UDP, UNCONNECTED),
    ("/proc/self/net/udp6", Protocol::UDP, UNCONNECTED),
];

/// Which of these a process of this host listens at.
pub fn of(asked: &BTreeSet<Frontend>) -> Result<BTreeSet<Frontend>> {
    let mut found = BTreeSet::new();
    if asked.is_empty() {
        return Ok(found);
    }
    for (file, protocol, waits) in TABLES {
        let file = match File::open(file) {
            Ok(file) => file,
            // A kernel without IPv6.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).lines().skip(1) {
            let line = line?;
            let Some((ip, port, state)) = socket(&line) else { continue };
            // Listening TCP sockets are listed first, before many thousands of others.
            if protocol == Protocol::TCP && state != waits {
                break;
            }
            let frontend = Frontend::new(ip, port, protocol);
            if state == waits && asked.contains(&frontend) {
                found.insert(frontend);
            }
        }
    }
    Ok(found)
}

/// Local address and state of a line.
fn socket(line: &str) -> Option<(Ip, Port, &str)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, _peer, state) = (words.next()?, words.next()?, words.next()?);
    let (address, port) = local.split_once(':')?;
    let port = Port::new(u16::from_str_radix(port, 16).ok()?);
    // Words of 32 bits as the machine reads them, of an address in network byte order.
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match address.len() {
        8 => Ip::v4(word(0)?),
        32 => {
            let mut octets = [0; 16];
            for (index, part) in octets.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(index * 8)?);
            }
            Ip::v6(octets)
        }
        _ => return None,
    };
    Some((ip, port, state))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;
    use crate::reconcile::wire;

    #[test]
    fn sockets_at_an_address_are_found_and_those_at_the_wildcard_are_not() -> Result<()> {
        for ip in ["127.0.0.53", "::1"] {
            let tcp = TcpListener::bind((ip, 0))?;
            let udp = UdpSocket::bind((ip, 0))?;
            let everywhere = TcpListener::bind(("0.0.0.0", 0))?;
            let _stream = TcpStream::connect(tcp.local_addr()?)?;
            let at = |port, protocol| {
                Frontend::new(wire(ip.parse().expect("an address")), Port::new(port), protocol)
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

    #[test]
    fn cut_lines_are_no_sockets() {
        assert!(socket("").is_none());
        assert!(socket("  0: 0100007F:0035 00000000:0000").is_none());
        assert!(socket("  0: 0100007F 00000000:0000 0A").is_none());
    }
}
