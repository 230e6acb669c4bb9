//! Both ends of a measurement: a server that only answers, and a client that asks for a while and counts.
//!
//! The first byte of a connection says what it is for: [`ONCE`] is answered and closed by the server (so no client port
//! waits for the end of a connection), [`KEPT`] goes on, [`BULK`] is read and thrown away.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// Bytes of a request, and of an answer.
const SIZE: usize = 64;
/// Bytes of one write of bulk traffic.
const BULK_SIZE: usize = 256 * 1024;
/// Threads that accept connections.
const ACCEPTORS: usize = 2;
/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Part of the time that is not counted: caches fill, windows open.
const WARM_UP: u32 = 8;

const ONCE: u8 = b'o';
const KEPT: u8 = b'k';
const BULK: u8 = b'b';

/// What a client does over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Connect, ask, be answered, close; one at a time.
    Connect,
    /// Ask on one connection, one question at a time.
    Kept,
    /// The same on sixteen connections at once.
    Kept16,
    /// Ask by UDP, one datagram at a time.
    Udp,
    /// Send as much as fits by one TCP connection.
    Bulk,
}

impl Operation {
    /// All, in the order in which they are measured.
    pub const ALL: [Self; 5] = [Self::Connect, Self::Kept, Self::Kept16, Self::Udp, Self::Bulk];

    /// Its name on command lines and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Kept => "kept",
            Self::Kept16 => "kept16",
            Self::Udp => "udp",
            Self::Bulk => "bulk",
        }
    }

    /// What is counted, each second.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Connect => "connections",
            Self::Kept | Self::Kept16 | Self::Udp => "requests",
            Self::Bulk => "bytes",
        }
    }
}

impl FromStr for Operation {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|operation| operation.name() == text);
        found.with_context(|| format!("operation {text}: connect, kept, kept16, udp or bulk"))
    }
}

/// What a client counted.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Connections, requests or bytes a second.
    pub rate: f64,
    /// Microseconds of the middle answer; 0 for bulk traffic.
    pub middle: f64,
    /// Microseconds that 99 of 100 answers did not exceed.
    pub late: f64,
    /// Datagrams that were not answered.
    pub lost: u64,
}

/// Answers at an address until it is killed.
pub fn serve(at: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(at).with_context(|| format!("listen at {at}"))?;
    let socket = UdpSocket::bind(at).with_context(|| format!("listen at {at} by UDP"))?;
    for _ in 0..ACCEPTORS {
        let listener = listener.try_clone()?;
        drop(thread::spawn(move || {
            loop {
                if let Ok((stream, _)) = listener.accept() {
                    // A client that goes away is no fault of ours.
                    drop(talk(stream));
                }
            }
        }));
    }
    let mut datagram = [0; 2_048];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut datagram) else { continue };
        drop(socket.send_to(datagram.get(..length).unwrap_or_default(), client));
    }
}

/// A short connection at once, others on a thread of their own.
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

/// Asks `to` for a while and counts.
pub fn ask(operation: Operation, to: SocketAddr, time: Duration) -> Result<Count> {
    match operation {
        Operation::Connect => repeat(time, || once(to)),
        Operation::Kept => kept(to, time),
        Operation::Kept16 => {
            let clients: Vec<_> = (0..16).map(|_| thread::spawn(move || kept(to, time))).collect();
            let mut all = Count { rate: 0.0, middle: 0.0, late: 0.0, lost: 0 };
            for client in clients {
                let one = client.join().ok().context("a client ended")??;
                all.rate += one.rate;
                all.middle += one.middle / 16.0;
                all.late = all.late.max(one.late);
            }
            Ok(all)
        }
        Operation::Udp => udp(to, time),
        Operation::Bulk => bulk(to, time),
    }
}

/// Does something for a while; its first part is not counted.
#[expect(clippy::cast_sign_loss, reason = "a share of a length is not negative")]
fn repeat(time: Duration, mut what: impl FnMut() -> Result<()>) -> Result<Count> {
    let warm = Instant::now();
    while warm.elapsed() < time / WARM_UP {
        what()?;
    }
    let (began, mut took) = (Instant::now(), Vec::new());
    let mut last = began;
    while last - began < time {
        what()?;
        let now = Instant::now();
        took.push((now - last).as_nanos() as f64 / 1_000.0);
        last = now;
    }
    let rate = took.len() as f64 / (last - began).as_secs_f64();
    took.sort_by(f64::total_cmp);
    let at = |share: f64| took.get((took.len() as f64 * share) as usize).copied().unwrap_or(0.0);
    Ok(Count { rate, middle: at(0.5), late: at(0.99), lost: 0 })
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(to).with_context(|| format!("connect to {to}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn once(to: SocketAddr) -> Result<()> {
    let mut stream = connect(to)?;
    stream.write_all(&[ONCE; SIZE])?;
    let mut answer = [0; SIZE];
    stream.read_exact(&mut answer)?;
    // The server closes first.
    ensure!(stream.read(&mut answer)? == 0, "more than an answer");
    Ok(())
}

fn kept(to: SocketAddr, time: Duration) -> Result<Count> {
    let mut stream = connect(to)?;
    repeat(time, || {
        stream.write_all(&[KEPT; SIZE])?;
        Ok(stream.read_exact(&mut [0; SIZE])?)
    })
}

fn udp(to: SocketAddr, time: Duration) -> Result<Count> {
    let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse()?;
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut lost = 0;
    let count = repeat(time, || {
        let _: usize = socket.send(&[KEPT; SIZE])?;
        lost += u64::from(socket.recv(&mut [0; SIZE]).is_err());
        ensure!(lost < 10, "{to} does not answer");
        Ok(())
    })?;
    Ok(Count { lost, ..count })
}

fn bulk(to: SocketAddr, time: Duration) -> Result<Count> {
    let mut stream = connect(to)?;
    let buffer = vec![BULK; BULK_SIZE];
    let count = repeat(time, || Ok(stream.write_all(&buffer)?))?;
    Ok(Count { rate: count.rate * BULK_SIZE as f64, middle: 0.0, late: 0.0, lost: 0 })
}
