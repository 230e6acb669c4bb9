//! One question to a server as data, the answer, and the possible failures.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long an answer may take where nothing else is said: also where a neighbour is looked for again, a SYN is sent a
/// third time, or the machine does much else.
const PATIENCE: Duration = Duration::from_secs(15);

/// A transport that can be asked through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// The name that Services use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A question.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Ask {
    /// Transport.
    pub protocol: Protocol,
    /// Whom to ask.
    pub to: SocketAddr,
    /// Address and port to ask from; port 0 leaves it to the kernel.
    pub from: Option<SocketAddr>,
    /// For UDP: connect the socket first. An unconnected one uses sendmsg and recvmsg with addresses.
    pub connected: bool,
    /// How many routers may pass the question on, where that is said; a UDP socket then hears of the one that gives up.
    pub hops: Option<u8>,
    /// How long to wait, where that is said.
    pub milliseconds: Option<u64>,
    /// Bytes of the question; a short one when 0.
    pub size: usize,
    /// Bytes of padding that the answer shall carry.
    pub answer_size: usize,
}

impl Ask {
    /// A question through TCP, or through a connected UDP socket.
    pub const fn new(protocol: Protocol, to: SocketAddr) -> Self {
        Self {
            protocol,
            to,
            from: None,
            connected: true,
            hops: None,
            milliseconds: None,
            size: 0,
            answer_size: 0,
        }
    }

    /// A question through TCP.
    pub const fn tcp(to: SocketAddr) -> Self {
        Self::new(Protocol::Tcp, to)
    }

    /// A question through a connected UDP socket.
    pub const fn udp(to: SocketAddr) -> Self {
        Self::new(Protocol::Udp, to)
    }

    /// Uses an unconnected socket.
    #[must_use]
    pub const fn unconnected(mut self) -> Self {
        self.connected = false;
        self
    }

    /// Asks from this address and port.
    #[must_use]
    pub const fn from(mut self, from: SocketAddr) -> Self {
        self.from = Some(from);
        self
    }

    /// Asks from this port.
    #[must_use]
    pub const fn from_port(self, port: u16) -> Self {
        let any = match self.to.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        self.from(SocketAddr::new(any, port))
    }

    /// Lets so many routers pass it on.
    #[must_use]
    pub const fn hops(mut self, hops: u8) -> Self {
        self.hops = Some(hops);
        self
    }

    /// Waits this long.
    #[must_use]
    pub const fn within(mut self, milliseconds: u64) -> Self {
        self.milliseconds = Some(milliseconds);
        self
    }

    /// Sends `size` bytes and wants `answer_size` back.
    #[must_use]
    pub const fn sized(mut self, size: usize, answer_size: usize) -> Self {
        self.size = size;
        self.answer_size = answer_size;
        self
    }

    pub(super) const fn patience(&self) -> Duration {
        let Some(milliseconds) = self.milliseconds else { return PATIENCE };
        Duration::from_millis(milliseconds)
    }
}

/// The answer of a server, and the client's socket as it was then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Name of the server.
    pub server: String,
    /// Whom the server saw.
    pub client: SocketAddr,
    /// Whom the client's socket says it talks to (getpeername), or for an unconnected one, who
    /// answered (recvmsg).
    pub peer: SocketAddr,
    /// The client's own address (getsockname).
    pub local: SocketAddr,
    /// From the call that opens the socket to the last byte of the answer.
    pub milliseconds: u64,
}

/// Why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Failure {
    /// `ECONNREFUSED`: a RST to the SYN, or an ICMP port unreachable.
    Refused,
    /// The same, but to a SYN that was sent again: the first had no answer.
    RefusedLate,
    /// Nothing came in time.
    TimedOut,
    /// The connection was reset or closed before the answer.
    Reset,
    /// `ECONNABORTED` or `EDESTADDRREQ`: the socket was ended from outside and is not connected any more.
    Ended,
    /// `EHOSTUNREACH` or `ENETUNREACH`.
    Unreachable,
    /// `EPERM` or `EACCES`: a hook or a firewall said no.
    NotPermitted,
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("refused"),
            Self::RefusedLate => f.write_str("refused at a later SYN"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Reset => f.write_str("reset"),
            Self::Ended => f.write_str("ended"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::NotPermitted => f.write_str("not permitted"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

impl Error for Failure {}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ECONNREFUSED) => Self::Refused,
            Some(libc::ECONNRESET | libc::EPIPE) => Self::Reset,
            Some(libc::ECONNABORTED | libc::EDESTADDRREQ) => Self::Ended,
            Some(libc::EHOSTUNREACH | libc::ENETUNREACH) => Self::Unreachable,
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted,
            Some(libc::EAGAIN | libc::ETIMEDOUT | libc::EINPROGRESS) => Self::TimedOut,
            _ if error.kind() == io::ErrorKind::TimedOut => Self::TimedOut,
            _ if error.kind() == io::ErrorKind::UnexpectedEof => Self::Reset,
            _ => Self::Other(error.to_string()),
        }
    }
}
