//! The TCP and UDP sockets of this network namespace: `/proc/net/tcp` and its like
//! (`Documentation/networking/proc_net_tcp.rst`).

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Result};

use lb_common::addr::{Endpoint, Ip, Port, Protocol};
use lb_common::service::Frontend;

/// State `TCP_LISTEN` (`net/tcp_states.h`).
const LISTEN: &str = "0A";
/// States `TCP_SYN_SENT`, `TCP_SYN_RECV` and `TCP_NEW_SYN_RECV`.
const OPENING: [&str; 3] = ["02", "03", "0C"];
/// State `TCP_CLOSE`, which UDP sockets without a peer have.
const UNCONNECTED: &str = "07";

/// The tables of the kernel, with protocol and state of a waiting socket.
const TABLES: [(&str, Protocol, &str); 4] = [
    ("/proc/self/net/tcp", Protocol::TCP, LISTEN),
    ("/proc/self/net/tcp6", Protocol::TCP, LISTEN),
    ("/proc/self/net/udp", Protocol::UDP, UNCONNECTED),
    ("/proc/self/net/udp6", Protocol::UDP, UNCONNECTED),
];

/// A TCP or UDP socket, as in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) local: Frontend,
    pub(super) peer: Endpoint,
    /// Whether the socket has no peer and accepts packets from any.
    pub(super) waits: bool,
    /// Whether it is a TCP socket whose handshake is not complete.
    pub(super) opens: bool,
}

/// The next step of a walk: another row of this table, or the next table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkStep {
    Row,
    Table,
}

/// Calls `show` for every socket; it may skip the rest of a table.
pub(super) fn walk(mut show: impl FnMut(&Socket) -> WalkStep) -> Result<()> {
    for (file, protocol, waits) in TABLES {
        let file = match File::open(file) {
            Ok(file) => file,
            // The kernel has no IPv6.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in BufReader::new(file).lines().skip(1) {
            let line = line?;
            let Some((local, peer, state)) = ends(&line) else { continue };
            let local = Frontend::new(local.ip, local.port, protocol);
            let opens = protocol == Protocol::TCP && OPENING.contains(&state);
            if show(&Socket { local, peer, waits: state == waits, opens }) == WalkStep::Table {
                break;
            }
        }
    }
    Ok(())
}

/// Parses both ends and the state of a row.
fn ends(line: &str) -> Option<(Endpoint, Endpoint, &str)> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, peer, state) = (words.next()?, words.next()?, words.next()?);
    Some((end(local)?, end(peer)?, state))
}

fn end(text: &str) -> Option<Endpoint> {
    let (address, port) = text.split_once(':')?;
    let port = Port::new(u16::from_str_radix(port, 16).ok()?);
    // The table prints the address, which is in network byte order, as native 32-bit words.
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
    Some(Endpoint::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_lines_are_no_sockets() {
        assert!(ends("").is_none());
        assert!(ends("  0: 0100007F:0035 00000000:0000").is_none());
        assert!(ends("  0: 0100007F 00000000:0000 0A").is_none());
        assert!(ends("  0: 0100007F:0035 00000000:0000 0A").is_some());
    }
}
