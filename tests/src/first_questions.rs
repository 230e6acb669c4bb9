//! New pods, wired as a CNI plugin does it, several at a time, and the first questions of each: one datagram that is
//! sent once, as by a resolver, and one TCP connection.
//!
//! The pods contain no process: a thread of the test sends the questions, so that only the wire takes time.

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

use crate::cpus::while_busy;
use crate::netns::Netns;
use crate::topology::{Node, Shape, address};
use crate::wait;

/// The time that a resolver waits before it repeats its question.
const LOST: Duration = Duration::from_secs(5);
/// The limit for a connection whose first SYN was answered: the kernel repeats a SYN after a second.
const LATE: Duration = Duration::from_millis(900);
/// The time between two checks of an interface.
const LOOK: Duration = Duration::from_micros(200);
/// The number of pods that are wired at a time, as by a kubelet.
const AT_ONCE: usize = 4;
/// The number of the first pod on its node; the pods of a topology have lower numbers.
const FIRST: u8 = 21;

/// The new pods of a trial, and the load beside them.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
    /// The number of new pods.
    pub pods: u8,
    /// The delay between an interface that is up and the pod's first question.
    pub delay: Duration,
    /// The number of computing threads meanwhile.
    pub busy: usize,
}

/// The outcomes of the first questions of all pods.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The times to the answers of the datagrams, the shortest first.
    pub answered: Vec<Duration>,
    /// The unanswered datagrams: number of the pod, and failure.
    pub lost: Vec<(u8, String)>,
    /// The number of connections whose first SYN was answered.
    pub connected: usize,
    /// The connections that needed a second SYN or failed: number of the pod, and reason.
    pub late: Vec<(u8, String)>,
}

/// The outcomes of the first questions of one pod.
#[derive(Debug)]
struct First {
    question: io::Result<Duration>,
    connection: io::Result<Duration>,
}

impl Trial {
    /// Adds the pods to a node. Each pod asks a Service in one family, alternately IPv4 and IPv6.
    pub fn run(&self, node: &Node, service: [SocketAddr; 2]) -> Result<Ledger> {
        let next = AtomicU8::new(0);
        let come = || self.come_in_turn(&next, node, service);
        let ended: Vec<_> = while_busy(self.busy, || {
            thread::scope(|scope| {
                let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(come)).collect();
                threads.into_iter().map(ScopedJoinHandle::join).collect()
            })
        });
        let (mut ledger, mut stay) = (Ledger::default(), Vec::new());
        for ended in ended {
            for (pod, first, netns) in ended.map_err(|_panic| anyhow!("a pod ended early"))?? {
                ledger.take(pod, first);
                stay.push(netns);
            }
        }
        ledger.answered.sort_unstable();
        // All pods stay until the last one has asked, so that no removal disturbs the others.
        drop(stay);
        Ok(ledger)
    }

    /// Adds one pod after the other, until all exist.
    fn come_in_turn(
        &self,
        next: &AtomicU8,
        node: &Node,
        service: [SocketAddr; 2],
    ) -> Result<Vec<(u8, First, Netns)>> {
        let mut all = Vec::new();
        loop {
            let pod = next.fetch_add(1, Ordering::Relaxed);
            if pod >= self.pods {
                return Ok(all);
            }
            let (first, netns) = self.come(node, FIRST + pod, service)?;
            all.push((pod, first, netns));
        }
    }

    fn come(&self, node: &Node, number: u8, service: [SocketAddr; 2]) -> Result<(First, Netns)> {
        let pod = Netns::new(&format!("{}-new{number}", node.netns().name()))?;
        wire(node, &pod, number)?;
        let to = service[usize::from(number) % service.len()];
        let first = pod.run_in(|| {
            until_it_carries()?;
            wait::pass(self.delay);
            Ok::<_, anyhow::Error>(ask(to))
        })??;
        Ok((first, pod))
    }
}

/// Wires a pod as CNI plugins with routed pods do; its interface is up when this returns.
fn wire(node: &Node, pod: &Netns, number: u8) -> Result<()> {
    let (device, host) = (format!("new{number}"), node.netns());
    host.ip(&format!(
        "link add {device} type veth peer name tmp{number}
         link set tmp{number} netns {} name eth0",
        pod.name()
    ))?;
    let addresses = address::pod(node.number(), number)?;
    Shape::Routed.connect(host, number, pod, &device, addresses)
}

/// Waits until the wire carries packets. The kernel enables a new wire asynchronously and drops earlier packets,
/// whatever proxy there is.
fn until_it_carries() -> Result<()> {
    let is_open = |device: InterfaceAddress| {
        device.interface_name == "eth0" && device.flags.contains(InterfaceFlags::IFF_RUNNING)
    };
    let began = Instant::now();
    while !getifaddrs()?.any(is_open) {
        ensure!(began.elapsed() < LOST, "the wire of a pod does not carry");
        wait::pass(LOOK);
    }
    Ok(())
}

/// Sends one datagram, opens one connection, and waits for the answer to the datagram.
fn ask(to: SocketAddr) -> First {
    let began = Instant::now();
    let asked = send(to);
    let opened = Instant::now();
    let connection = TcpStream::connect_timeout(&to, LOST).map(|_stream| opened.elapsed());
    let question = asked.and_then(|socket| {
        let left = LOST.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
        socket.set_read_timeout(Some(left))?;
        socket.recv(&mut [0; 512])?;
        Ok(began.elapsed())
    });
    First { question, connection }
}

fn send(to: SocketAddr) -> io::Result<UdpSocket> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(to)?;
    socket.send(b"ask 0\n")?;
    Ok(socket)
}

impl Ledger {
    fn take(&mut self, pod: u8, First { question, connection }: First) {
        match question {
            Ok(took) => self.answered.push(took),
            Err(error) => self.lost.push((pod, error.to_string())),
        }
        match connection {
            Ok(took) if took < LATE => self.connected += 1,
            Ok(took) => self.late.push((pod, format!("after {} ms", took.as_millis()))),
            Err(error) => self.late.push((pod, error.to_string())),
        }
    }
}
