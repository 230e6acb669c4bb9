//! The server of a measurement: it answers requests and does nothing else.
//!
//! The first byte of a connection names its kind. [`ONCE`]: the server answers once and closes (so no port of a client
//! stays in `TIME_WAIT`). [`KEPT`]: the connection stays open for more requests. [`BULK`]: the server reads and
//! discards.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// The size of a request and of an answer, in bytes.
pub(super) const SIZE: usize = 64;
/// The size of one write of bulk traffic, in bytes.
pub(super) const BULK_SIZE: usize = 256 * 1024;
/// The number of threads that accept connections.
const ACCEPTORS: usize = 2;
/// The deadline for the first byte of a client.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) const ONCE: u8 = b'o';
pub(super) const KEPT: u8 = b'k';
pub(super) const BULK: u8 = b'b';

/// Serves these addresses until the process is killed.
pub fn serve(at: &[SocketAddr]) -> Result<()> {
    let mut last = None;
    for at in at {
        let listener = TcpListener::bind(at).with_context(|| format!("listen at {at}"))?;
        let socket = UdpSocket::bind(at).with_context(|| format!("listen at {at} by UDP"))?;
        for _ in 0..ACCEPTORS {
            let listener = listener.try_clone()?;
            drop(thread::spawn(move || accept(&listener)));
        }
        last = Some(thread::spawn(move || echo(&socket)));
    }
    drop(last.context("no address to serve at")?.join());
    Ok(())
}

fn accept(listener: &TcpListener) {
    loop {
        if let Ok((stream, _)) = listener.accept() {
            // A client that disconnects is not an error of the server.
            drop(talk(stream));
        }
    }
}

fn echo(socket: &UdpSocket) {
    let mut datagram = [0; 2_048];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut datagram) else { continue };
        drop(socket.send_to(datagram.get(..length).unwrap_or_default(), client));
    }
}

/// Serves a short connection on this thread, any other kind on a thread of its own.
fn talk(mut stream: TcpStream) -> Result<()> {
    let mut request = [0; SIZE];
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.read_exact(&mut request)?;
    let [kind, ..] = request;
    match kind {
        ONCE => Ok(stream.write_all(&request)?),
        KEPT => {
            stream.set_read_timeout(None)?;
            stream.set_nodelay(true)?;
            drop(thread::spawn(move || -> Result<()> {
                loop {
                    stream.write_all(&request)?;
                    stream.read_exact(&mut request)?;
                }
            }));
            Ok(())
        }
        BULK => {
            drop(thread::spawn(move || {
                let mut thrown = vec![0; BULK_SIZE];
                while stream.read(&mut thrown).is_ok_and(|length| length > 0) {}
            }));
            Ok(())
        }
        other => bail!("a connection begins with {other}"),
    }
}
