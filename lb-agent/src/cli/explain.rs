//! Arguments of `explain`.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use clap::{Args, ValueEnum};

use super::{Format, Pins};

/// Port of a client given without one. The Maglev slot, and so the backend, depends on it.
const CLIENT_PORT: u16 = 40_000;

/// `lb-agent explain`
#[derive(Clone, Debug, Args)]
pub struct Explain {
    /// The client: ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT. The port, 40000 if none is given, affects the choice of the
    /// backend.
    #[arg(value_name = "CLIENT")]
    pub client: ClientAddress,
    /// Address and port that the client connects to: of a ClusterIP, a node port, an external IP or a load balancer.
    #[arg(value_name = "ADDRESS:PORT")]
    pub to: SocketAddr,
    /// Transport protocol of the packet.
    #[arg(long, value_enum, default_value = "tcp")]
    pub protocol: Transport,
    /// Interface on which the client's packets arrive [default: that of the route to the client].
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    #[command(flatten)]
    pub pins: Pins,
    /// Output format; `table` prints one line for each fact.
    #[command(flatten)]
    pub format: Format,
}

/// Address and port of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress(pub SocketAddr);

impl FromStr for ClientAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // An address without a port is tried first: an IPv6 address has colons of its own.
        let address = text.trim_matches(['[', ']']).parse::<IpAddr>();
        let with_port =
            address.map(|ip| SocketAddr::new(ip, CLIENT_PORT)).or_else(|_| text.parse());
        with_port
            .map(Self)
            .map_err(|_neither| "write ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT".to_owned())
    }
}

/// A transport protocol that Services have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    Tcp,
    Udp,
    Sctp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_written_with_a_port_and_without() {
        for (text, expected) in [
            ("10.1.0.5", "10.1.0.5:40000"),
            ("10.1.0.5:7", "10.1.0.5:7"),
            ("fd00::5", "[fd00::5]:40000"),
            ("[fd00::5]", "[fd00::5]:40000"),
            ("[fd00::5]:7", "[fd00::5]:7"),
        ] {
            assert_eq!(
                text.parse::<ClientAddress>().map(|client| client.0.to_string()),
                Ok(expected.into())
            );
        }
        for text in ["", "pod-a1", "10.1.0.5:", "10.1.0.5:70000", "fd00::5:7:"] {
            assert!(text.parse::<ClientAddress>().is_err(), "{text}");
        }
    }
}
