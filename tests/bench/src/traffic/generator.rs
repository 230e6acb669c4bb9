//! The client of a measurement: it sends requests for a given time and returns the rate, the latency and the CPU time.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::str::FromStr;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::super::load;
use super::server::{BULK, BULK_SIZE, KEPT, ONCE, SIZE};

/// The deadline for one answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The divisor of the time that is not counted at the start, while caches fill and windows open.
const WARM_UP: u32 = 8;
/// The upper bound of the latency histogram, in nanoseconds: longer answers count as this long.
const LONGEST: u64 = 10_000_000_000;
/// The number of unanswered datagrams after which the server counts as absent.
const LOST: u64 = 10;

/// The operation that a client repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Connect, ask once, read the answer, close; one connection at a time.
    Connect,
    /// The same by sixteen clients at once.
    Connect16,
    /// Ask repeatedly on one connection, one question at a time.
    Kept,
    /// Ask repeatedly on sixteen connections at once, one question at a time on each.
    Kept16,
    /// Ask by UDP, one datagram at a time.
    Udp,
    /// Send as much as possible over one TCP connection.
    Bulk,
}

impl Operation {
    /// All operations, in the order of measurement.
    pub const ALL: [Self; 6] =
        [Self::Connect, Self::Connect16, Self::Kept, Self::Kept16, Self::Udp, Self::Bulk];

    /// The name on command lines and in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Connect16 => "connect16",
            Self::Kept => "kept",
            Self::Kept16 => "kept16",
            Self::Udp => "udp",
            Self::Bulk => "bulk",
        }
    }

    /// The unit of the rate, and the unit of the CPU time.
    pub const fn units(self) -> (&'static str, &'static str) {
        match self {
            Self::Connect | Self::Connect16 => ("connections/s", "us a connection"),
            Self::Kept | Self::Kept16 | Self::Udp => ("requests/s", "us a request"),
            Self::Bulk => ("bit/s", "us a megabyte"),
        }
    }

    const fn clients(self) -> usize {
        match self {
            Self::Connect16 | Self::Kept16 => 16,
            Self::Connect | Self::Kept | Self::Udp | Self::Bulk => 1,
        }
    }
}

impl FromStr for Operation {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|operation| operation.name() == text);
        found.with_context(|| {
            format!("operation {text}: connect, connect16, kept, kept16, udp or bulk")
        })
    }
}

/// The result of a client.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Count {
    /// Connections, requests or bits per second.
    pub rate: f64,
    /// The latencies in microseconds that 50, 90 and 99 of 100 answers did not exceed; none for bulk traffic.
    pub latency: Option<[f64; 3]>,
    /// The CPU time of all processes and the kernel per connection, request or megabyte, in microseconds.
    pub cpu: f64,
    /// The number of unanswered datagrams.
    pub lost: u64,
    /// The number of all operations, including those of the warm-up.
    pub operations: u64,
}

/// The part of the result that one of several clients contributes.
struct Share {
    histogram: Histogram<u64>,
    lost: u64,
    /// Operations of the warm-up.
    uncounted: u64,
}

/// Runs an operation against `to` for a while, and returns the counts.
pub fn ask(operation: Operation, to: SocketAddr, time: Duration) -> Result<Count> {
    let barrier = Arc::new(Barrier::new(operation.clients() + 1));
    let start = || {
        let barrier = Arc::clone(&barrier);
        thread::spawn(move || client(operation, to, time, &barrier))
    };
    let clients: Vec<_> = (0..operation.clients()).map(|_| start()).collect();
    // All clients have warmed up; the measurement begins.
    let _: std::sync::BarrierWaitResult = barrier.wait();
    let (began, before) = (Instant::now(), load::busy()?);
    let mut all = Share { histogram: histogram()?, lost: 0, uncounted: 0 };
    for client in clients {
        let share = client.join().ok().with_context(|| format!("a client of {to} panicked"))??;
        all.histogram.add(share.histogram)?;
        all.lost += share.lost;
        all.uncounted += share.uncounted;
    }
    let (seconds, busy) = (began.elapsed().as_secs_f64(), load::busy()? - before);
    let times = all.histogram.len() as f64;
    let at = |percent| all.histogram.value_at_percentile(percent) as f64 / 1_000.0;
    let (amount, of_cpu, latency) = match operation {
        Operation::Bulk => (times * BULK_SIZE as f64 * 8.0, times * BULK_SIZE as f64 / 1e6, None),
        Operation::Connect
        | Operation::Connect16
        | Operation::Kept
        | Operation::Kept16
        | Operation::Udp => (times, times, Some([50.0, 90.0, 99.0].map(at))),
    };
    let operations = all.histogram.len() + all.uncounted;
    let cpu = busy * 1e6 / of_cpu.max(1.0);
    Ok(Count { rate: amount / seconds, latency, cpu, lost: all.lost, operations })
}

fn histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LONGEST, 3).context("histogram")
}

/// Opens the sockets that the operation needs, and repeats the operation. The client always reaches the barrier, also
/// after a failure, because the others wait there.
fn client(
    operation: Operation,
    to: SocketAddr,
    time: Duration,
    barrier: &Barrier,
) -> Result<Share> {
    let warm = |what: &mut dyn FnMut() -> Result<u64>| -> Result<u64> {
        let (began, mut done) = (Instant::now(), 0);
        while began.elapsed() < time / WARM_UP {
            what()?;
            done += 1;
        }
        Ok(done)
    };
    let mut what = action(operation, to);
    let ready = what.as_mut().map_or_else(|error| Err(anyhow::anyhow!("{error:#}")), |it| warm(it));
    let _: std::sync::BarrierWaitResult = barrier.wait();
    let uncounted = ready?;
    let (mut what, mut share) = (what?, Share { histogram: histogram()?, lost: 0, uncounted });
    let began = Instant::now();
    let mut last = began;
    while last - began < time {
        share.lost += what()?;
        ensure!(share.lost < LOST, "{to} does not answer");
        let now = Instant::now();
        share.histogram.saturating_record((now - last).as_nanos() as u64);
        last = now;
    }
    Ok(share)
}

/// The repeated action; it returns the number of unanswered questions.
type Action = Box<dyn FnMut() -> Result<u64>>;

fn action(operation: Operation, to: SocketAddr) -> Result<Action> {
    Ok(match operation {
        Operation::Connect | Operation::Connect16 => Box::new(move || once(to).map(|()| 0)),
        Operation::Kept | Operation::Kept16 => {
            let mut stream = connect(to)?;
            Box::new(move || {
                stream.write_all(&[KEPT; SIZE])?;
                Ok(stream.read_exact(&mut [0; SIZE]).map(|()| 0)?)
            })
        }
        Operation::Udp => {
            let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse()?;
            let socket = UdpSocket::bind(any)?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(Duration::from_millis(50)))?;
            Box::new(move || {
                socket.send(&[KEPT; SIZE])?;
                Ok(u64::from(socket.recv(&mut [0; SIZE]).is_err()))
            })
        }
        Operation::Bulk => {
            let mut stream = connect(to)?;
            let buffer = vec![BULK; BULK_SIZE];
            Box::new(move || Ok(stream.write_all(&buffer).map(|()| 0)?))
        }
    })
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
    // The server must close first, so that TIME_WAIT is on its side.
    ensure!(stream.read(&mut answer)? == 0, "more than an answer");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::server::serve;
    use super::*;

    #[test]
    fn every_operation_is_counted() {
        let at = free_port();
        drop(thread::spawn(move || serve(&[at])));
        let deadline = Instant::now() + Duration::from_mins(1);
        while TcpStream::connect(at).is_err() && Instant::now() < deadline {
            thread::yield_now();
        }
        for operation in Operation::ALL {
            // On a busy machine the first of these intervals may be too short for a single operation.
            let times = [40, 400, 4_000, 40_000].map(Duration::from_millis);
            let mut counts = times.into_iter().map(|time| ask(operation, at, time).unwrap());
            let count = counts.find(|count| count.rate > 0.0).unwrap();
            assert!(count.cpu >= 0.0, "{operation:?}: {count:?}");
            let is_ordered =
                count.latency.is_none_or(|[middle, _, late]| 0.0 < middle && middle <= late);
            assert!(is_ordered, "{operation:?}: {count:?}");
        }
    }

    fn free_port() -> SocketAddr {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }
}
