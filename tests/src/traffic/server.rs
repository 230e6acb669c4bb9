//! Servers that answer with their name and the client address that they saw.
//!
//! A question is a line, `ask SIZE ...`. The answer is a line with name, client, number of received bytes, and SIZE
//! bytes of padding. A line of HTTP gets the same content as an HTTP answer, so that a browser or curl can be a client.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Socket, Type};

use super::Protocol;

/// The interval at which a server checks whether it should end.
const LOOK_UP: Duration = Duration::from_millis(50);

/// A server at one address; dropping it closes its socket, so that later connections are refused.
#[derive(Debug)]
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `at`; the server is reachable when this returns.
    pub(crate) fn start(name: &str, protocol: Protocol, at: SocketAddr) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (flag, name) = (Arc::clone(&stop), Arc::<str>::from(name));
        let builder = Builder::new().name(format!("{protocol} {at}"));
        let thread = match protocol {
            Protocol::Tcp => {
                let listener = listen(at)?;
                builder.spawn(move || serve_tcp(&listener, &name, &flag))?
            }
            Protocol::Udp => {
                let socket = UdpSocket::from(bind(at, Type::DGRAM)?);
                builder.spawn(move || serve_udp(&socket, &name, &flag))?
            }
        };
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Binds an address for one family only: an IPv6 wildcard would accept IPv4 as well.
fn bind(at: SocketAddr, kind: Type) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), kind, None)?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
    }
    if kind == Type::DGRAM {
        // Several large datagrams may arrive at once; a loss in the receive buffer would not be one of the data path.
        setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20))?;
    }
    // With this timeout accept and recv return, so that the thread can check whether it should end.
    socket.set_read_timeout(Some(LOOK_UP))?;
    socket.bind(&at.into())?;
    Ok(socket)
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = bind(at, Type::STREAM)?;
    socket.listen(1_024)?;
    Ok(socket.into())
}

fn serve_tcp(listener: &TcpListener, name: &Arc<str>, stop: &Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let Ok((stream, client)) = listener.accept() else {
            continue;
        };
        let name = Arc::clone(name);
        let talk = move || drop(talk(stream, client, &name));
        drop(Builder::new().name(format!("from {client}")).spawn(talk));
    }
}

/// Answers one line after another until the client closes.
fn talk(stream: TcpStream, client: SocketAddr, name: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // An accepted socket inherits the listener's timeout, which is not meant for conversations.
    stream.set_read_timeout(None)?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        if line.starts_with(b"GET ") {
            let body = format!("{name} {client}\n");
            let length = body.len();
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n";
            let stream = reader.get_mut();
            return write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}");
        }
        reader.get_mut().write_all(&answer(name, client, &line))?;
        line.clear();
    }
    Ok(())
}

fn serve_udp(socket: &UdpSocket, name: &str, stop: &AtomicBool) {
    let mut datagram = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        let Ok((length, client)) = socket.recv_from(&mut datagram) else {
            continue;
        };
        let question = datagram.get(..length).unwrap_or_default();
        if let Err(error) = socket.send_to(&answer(name, client, question), client) {
            // The client will report a question that timed out: the reason is here.
            drop(writeln!(io::stderr(), "{name}: answer to {client}: {error}"));
        }
    }
}

fn answer(name: &str, client: SocketAddr, question: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(question.get(..question.len().min(32)).unwrap_or_default());
    let size = text.split(' ').nth(1).and_then(|size| size.trim().parse().ok()).unwrap_or(0);
    let mut answer = format!("{name} {client} {} ", question.len()).into_bytes();
    answer.resize(answer.len() + size, b'.');
    answer.push(b'\n');
    answer
}
