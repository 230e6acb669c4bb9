//! One unconnected UDP socket with questions to two servers under way at once: each answer must come from the address
//! that was asked.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::load::Tally;

/// The deadline for an answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Asks both servers `times` times, sending both questions before reading an answer. An answer from the server that was
/// asked is counted by its address, all others as failures.
pub(crate) fn ask_both(to: [SocketAddr; 2], times: u32) -> Tally {
    let mut tally = Tally::default();
    if let Err(error) = converse(to, times, &mut tally) {
        *tally.failures.entry(error.to_string()).or_default() += 1;
    }
    tally
}

fn converse(to: [SocketAddr; 2], times: u32, tally: &mut Tally) -> io::Result<()> {
    let any: IpAddr = match to[0] {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    // A server reports the length of a question, which identifies the question that an answer belongs to.
    let questions = ["ask 0 .\n", "ask 0 ..\n"];
    let mut datagram = [0; 512];
    for turn in 0..times {
        let mut both: Vec<_> = to.into_iter().zip(questions).collect();
        both.rotate_left(turn as usize % 2);
        for (to, question) in &both {
            let _sent: usize = socket.send_to(question.as_bytes(), to)?;
        }
        for _ in &both {
            let (length, from) = socket.recv_from(&mut datagram)?;
            let text = String::from_utf8_lossy(datagram.get(..length).unwrap_or_default());
            let received = text.split_ascii_whitespace().nth(2);
            let is_about = |question: &str| received == Some(question.len().to_string().as_str());
            let asked = both.iter().find(|(_, question)| is_about(question)).map(|(to, _)| *to);
            let slot = if asked == Some(from) {
                tally.servers.entry(from.to_string())
            } else {
                tally.failures.entry(format!("{from} answers what {asked:?} was asked"))
            };
            *slot.or_default() += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::Protocol;
    use crate::traffic::server::Server;

    #[test]
    fn answers_are_counted_by_the_address_of_the_server() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let ports = [0; 2].map(|port| {
            let free = UdpSocket::bind(at(port)).unwrap();
            free.local_addr().unwrap().port()
        });
        let _servers = ports.map(|port| Server::start("one", Protocol::Udp, at(port)).unwrap());
        let tally = ask_both(ports.map(at), 10);
        assert_eq!(tally.servers, ports.map(|port| (at(port).to_string(), 10)).into());
        assert_eq!(tally.failed(), 0);
    }
}
