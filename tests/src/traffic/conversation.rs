//! The socket of a client: opened as the question requires, and used for one or more questions.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::mem::zeroed;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Instant;

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use super::{Answer, Ask, Failure, Protocol};

/// The largest length of an answer besides its padding, in bytes: allocating more would cost more time than the
/// question.
const HEAD: usize = 4_096;

/// A socket that has been used for a question, or can be.
#[derive(Debug)]
pub(crate) enum Conversation {
    Tcp(BufReader<TcpStream>),
    Udp(UdpSocket),
}

/// Opens the socket for a question.
pub(crate) fn open(ask: &Ask) -> Result<Conversation, Failure> {
    let kind = match ask.protocol {
        Protocol::Tcp => Type::STREAM,
        Protocol::Udp => Type::DGRAM,
    };
    let socket = Socket::new(Domain::for_address(ask.to), kind, None)?;
    if let Some(from) = ask.from {
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
    }
    if let Some(hops) = ask.hops {
        match ask.to {
            SocketAddr::V4(_) => socket.set_ttl_v4(hops.into())?,
            SocketAddr::V6(_) => socket.set_unicast_hops_v6(hops.into())?,
        }
    }
    match ask.protocol {
        Protocol::Tcp => {
            let connected = socket.connect_timeout(&ask.to.into(), ask.patience());
            connected.map_err(|error| failure(&socket, error))?;
            socket.set_tcp_nodelay(true)?;
            Ok(Conversation::Tcp(BufReader::new(socket.into())))
        }
        Protocol::Udp => {
            if !ask.connected || ask.hops.is_some() {
                report_errors(&socket, ask.to)?;
            }
            if ask.connected {
                socket.connect(&ask.to.into())?;
            }
            Ok(Conversation::Udp(socket.into()))
        }
    }
}

/// Distinguishes a refusal of the first SYN from that of a later one.
fn failure(socket: &Socket, error: io::Error) -> Failure {
    let failure = Failure::from(error);
    let is_late = failure == Failure::Refused && has_sent_again(socket);
    if is_late { Failure::RefusedLate } else { failure }
}

fn has_sent_again(socket: &Socket) -> bool {
    // SAFETY: all zeroes is a valid tcp_info.
    let mut info: libc::tcp_info = unsafe { zeroed() };
    let mut size = size_of::<libc::tcp_info>() as libc::socklen_t;
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    let (to, length) = ((&raw mut info).cast(), &raw mut size);
    // SAFETY: the value lives during the call, and the size is its own.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, to, length) };
    result == 0 && info.tcpi_total_retrans > 0
}

/// Makes the socket report ICMP errors: an unconnected socket does so only on request, and the same holds for hop limit
/// errors on any socket.
fn report_errors(socket: &Socket, to: SocketAddr) -> Result<(), Failure> {
    let set = match to {
        SocketAddr::V4(_) => setsockopt(socket, sockopt::Ipv4RecvErr, &true),
        SocketAddr::V6(_) => setsockopt(socket, sockopt::Ipv6RecvErr, &true),
    };
    set.map_err(|errno| io::Error::from(errno).into())
}

impl Conversation {
    /// Asks through this socket.
    pub(crate) fn ask(&mut self, ask: &Ask) -> Result<Answer, Failure> {
        let start = Instant::now();
        self.send(ask)?;
        let mut answer = self.receive(ask)?;
        answer.milliseconds = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(answer)
    }

    /// Sends a question; [`Self::receive`] reads the answer.
    pub(crate) fn send(&mut self, ask: &Ask) -> Result<(), Failure> {
        let question = question(ask);
        match self {
            Self::Tcp(stream) => {
                stream.get_ref().set_write_timeout(Some(ask.patience()))?;
                stream.get_mut().write_all(&question)?;
            }
            Self::Udp(socket) if ask.connected => drop(socket.send(&question)?),
            Self::Udp(socket) => drop(socket.send_to(&question, ask.to)?),
        }
        Ok(())
    }

    /// Receives the answer to the question that was sent.
    pub(crate) fn receive(&mut self, ask: &Ask) -> Result<Answer, Failure> {
        let start = Instant::now();
        let (text, peer, local) = match self {
            Self::Tcp(stream) => receive_tcp(stream, ask)?,
            Self::Udp(socket) => receive_udp(socket, ask)?,
        };
        let mut words = text.split_ascii_whitespace();
        let mut word = || words.next().unwrap_or_default();
        let (server, client, received) = (word().to_owned(), word(), word());
        let Ok(client) = client.parse() else {
            return Err(Failure::Other(format!("answer: {text:.80}")));
        };
        let sent = question(ask).len();
        if received != sent.to_string() {
            return Err(Failure::Other(format!("{received} of {sent} bytes arrived")));
        }
        let milliseconds = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(Answer { server, client, peer, local, milliseconds })
    }
}

/// Opens a socket, asks once, and closes it.
pub(crate) fn once(ask: &Ask) -> Result<Answer, Failure> {
    let start = Instant::now();
    let mut answer = open(ask)?.ask(ask)?;
    answer.milliseconds = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(answer)
}

/// The line of a question: it contains the requested padding of the answer, and is itself padded to the requested
/// length.
fn question(ask: &Ask) -> Vec<u8> {
    let mut line = format!("ask {} ", ask.answer_size).into_bytes();
    line.resize(line.len().max(ask.size.saturating_sub(1)), b'.');
    line.push(b'\n');
    line
}

type Heard = (String, SocketAddr, SocketAddr);

fn receive_tcp(stream: &mut BufReader<TcpStream>, ask: &Ask) -> Result<Heard, Failure> {
    stream.get_ref().set_read_timeout(Some(ask.patience()))?;
    let mut line = Vec::new();
    let limit = (ask.answer_size + HEAD) as u64;
    stream.by_ref().take(limit).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') || line.len() < ask.answer_size {
        return Err(Failure::Reset);
    }
    let (peer, local) = (stream.get_ref().peer_addr()?, stream.get_ref().local_addr()?);
    Ok((String::from_utf8_lossy(&line).into_owned(), peer, local))
}

fn receive_udp(socket: &UdpSocket, ask: &Ask) -> Result<Heard, Failure> {
    socket.set_read_timeout(Some(ask.patience()))?;
    let mut datagram = vec![0; ask.answer_size + HEAD];
    let (length, peer) = if ask.connected {
        let length = socket.recv(&mut datagram)?;
        (length, socket.peer_addr()?)
    } else {
        socket.recv_from(&mut datagram)?
    };
    if length < ask.answer_size {
        return Err(Failure::Other(format!("an answer of {length} bytes")));
    }
    datagram.truncate(length);
    Ok((String::from_utf8_lossy(&datagram).into_owned(), peer, socket.local_addr()?))
}
