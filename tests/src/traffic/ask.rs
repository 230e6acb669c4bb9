//! One question to a server as data, the answer, and the possible failures.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use lb_common::fake::Transport;
use lb_common::wire::tcp;
use serde::{Deserialize, Serialize};

/// The default deadline for an answer. It allows for another neighbour resolution, a third SYN, or a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);

/// A transport of questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    /// The name in Service specs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }

    /// The header of a handmade packet of an open flow.
    pub const fn of_an_open_flow(self) -> Transport {
        match self {
            Self::Tcp => Transport::Tcp(tcp::ACK),
            Self::Udp => Transport::Udp(true),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A question to a server: one request and one answer.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Ask {
    /// The transport of the question.
    pub protocol: Protocol,
    /// The address and port of the server.
    pub to: SocketAddr,
    /// The source address and port; with port 0, the kernel chooses one.
    pub from: Option<SocketAddr>,
    /// For UDP: whether the socket is connected first. An unconnected one uses sendmsg and recvmsg with addresses.
    pub connected: bool,
    /// The hop limit of the question. A UDP socket then also reports the ICMP error of a router that drops it.
    pub hops: Option<u8>,
    /// The timeout in milliseconds, in place of the default.
    pub milliseconds: Option<u64>,
    /// The length of the question in bytes; 0 for a short one.
    pub size: usize,
    /// The length of the answer's padding in bytes.
    pub answer_size: usize,
}

impl Ask {
    /// A question over TCP, or over a connected UDP socket.
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

    /// A question over TCP.
    pub const fn tcp(to: SocketAddr) -> Self {
        Self::new(Protocol::Tcp, to)
    }

    /// A question over a connected UDP socket.
    pub const fn udp(to: SocketAddr) -> Self {
        Self::new(Protocol::Udp, to)
    }

    /// Uses an unconnected UDP socket.
    #[must_use]
    pub const fn unconnected(mut self) -> Self {
        self.connected = false;
        self
    }

    /// Sets the source address and port.
    #[must_use]
    pub const fn from(mut self, from: SocketAddr) -> Self {
        self.from = Some(from);
        self
    }

    /// Sets the source port.
    #[must_use]
    pub const fn from_port(self, port: u16) -> Self {
        let any = match self.to.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        self.from(SocketAddr::new(any, port))
    }

    /// Sets the hop limit.
    #[must_use]
    pub const fn hops(mut self, hops: u8) -> Self {
        self.hops = Some(hops);
        self
    }

    /// Sets the timeout.
    #[must_use]
    pub const fn within(mut self, milliseconds: u64) -> Self {
        self.milliseconds = Some(milliseconds);
        self
    }

    /// Sends `size` bytes and requests `answer_size` bytes of padding in the answer.
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

/// The answer of a server, and the addresses of the client's socket at that time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The name of the server.
    pub server: String,
    /// The client address that the server saw.
    pub client: SocketAddr,
    /// The peer of the client's socket (getpeername). For an unconnected socket, the source of the answer (recvmsg).
    pub peer: SocketAddr,
    /// The local address of the client's socket (getsockname).
    pub local: SocketAddr,
    /// The time from opening the socket to the last byte of the answer, in milliseconds.
    pub milliseconds: u64,
}

/// The reason why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Failure {
    /// `ECONNREFUSED`: an RST to the SYN, or an ICMP port unreachable.
    Refused,
    /// `ECONNREFUSED` to a repeated SYN: the first SYN had no answer.
    RefusedLate,
    /// No answer came within the timeout.
    TimedOut,
    /// The connection was reset or closed before the answer.
    Reset,
    /// `ECONNABORTED` or `EDESTADDRREQ`: another process has closed or disconnected the socket.
    Ended,
    /// `EHOSTUNREACH` or `ENETUNREACH`, for example from an ICMP error of a router.
    Unreachable,
    /// `EPERM` or `EACCES`: a hook or a firewall denied the call.
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
