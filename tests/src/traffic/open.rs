//! Connections whose ends are both sockets of the test, so that it decides which end sends first, or that none does.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use socket2::{Domain, SockRef, Socket, Type};

use crate::topology::{Family, Member};

/// The deadline for reads; everything here answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Both ends of a connection; the server's end is the second.
#[derive(Debug)]
pub enum Open {
    Stream(TcpStream, TcpStream),
    Datagrams(UdpSocket, UdpSocket, SocketAddr),
}

impl Open {
    /// Exchanges the ends of a stream, so that the client sends first ([`Self::is_alive`]).
    #[must_use]
    pub fn turned(self) -> Self {
        match self {
            Self::Stream(client, server) => Self::Stream(server, client),
            Self::Datagrams(..) => self,
        }
    }

    /// The server sends a byte, and the client answers.
    pub fn is_alive(&mut self) -> Result<()> {
        let mut byte = [0];
        match self {
            Self::Stream(client, server) => {
                server.write_all(b"!")?;
                client.read_exact(&mut byte).context("the server's byte")?;
                client.write_all(b"?")?;
                server.read_exact(&mut byte).context("the client's byte")?;
            }
            Self::Datagrams(client, server, at) => {
                let at = *at;
                server.send_to(b"!", at)?;
                client.recv(&mut byte).context("the server's datagram")?;
                client.send(b"?")?;
                let (_, from) = server.recv_from(&mut byte).context("the client's datagram")?;
                ensure!(from == at, "from {from}, not {at}");
            }
        }
        Ok(())
    }
}

/// A socket of a family, bound to a port of a member (0: chosen by the kernel).
pub fn socket(of: &Member, family: Family, kind: Type, port: u16) -> Result<Socket> {
    let address = of.addresses().socket(family, port);
    let socket = of.home().run_in(|| Socket::new(Domain::for_address(address), kind, None))??;
    // With SO_REUSEADDR the kernel may choose a port that another socket has, at which this one cannot listen.
    socket.set_reuse_address(port != 0)?;
    socket.bind(&address.into())?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// Connects two sockets; returns the connection and the port that the server sees.
pub fn open(client: Socket, server: Socket) -> Result<(Open, u16)> {
    let to = server.local_addr()?;
    if client.r#type()? == Type::STREAM {
        server.listen(1)?;
        client.connect(&to).with_context(|| format!("{to:?}"))?;
        let listener = TcpListener::from(server);
        let (server, from) = listener.accept()?;
        // Closing is not enough: a process that another test starts has all files until it executes its program, and
        // a port with a listener cannot be bound again.
        SockRef::from(&listener).shutdown(Shutdown::Read)?;
        server.set_read_timeout(Some(PATIENCE))?;
        return Ok((Open::Stream(client.into(), server), from.port()));
    }
    client.connect(&to)?;
    let (client, server) = (UdpSocket::from(client), UdpSocket::from(server));
    client.send(b"?")?;
    let (_, from) = server.recv_from(&mut [0])?;
    Ok((Open::Datagrams(client, server, from), from.port()))
}
