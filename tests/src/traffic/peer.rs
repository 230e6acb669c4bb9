//! The process in a member (`lb-test-peer`), which takes orders on its standard input.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};

pub use self::open::{Kept, Load, Many};
pub use super::load::Tally;
pub use super::rounds::Ledger;
use super::session::{Order, Report};
use super::survey::{Endings, Inquiry};
use super::{Answer, Ask, Failure, Protocol};
use crate::join_all::locked;
use crate::process::{Home, start, workspace_binary};

mod open;

/// The pause in milliseconds between an answer and the next question of one client. It leaves CPU time for an agent on
/// two CPUs when all clients ask.
pub const PAUSE: u64 = 5;
/// The default timeout in milliseconds after which a question of a load counts as lost.
const LATE: u64 = 15_000;

/// The process that sends and answers questions for one member; dropping it ends the process.
#[derive(Debug)]
pub struct Peer {
    name: String,
    child: Child,
    pipes: Mutex<Pipes>,
    next: AtomicU64,
}

/// Both pipes to the process: one order, then its report, before the next order.
#[derive(Debug)]
struct Pipes {
    orders: ChildStdin,
    reports: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the process at `home`.
    pub(crate) fn start(name: &str, home: &Home) -> Result<Self> {
        let mut command = home.command(&workspace_binary("lb-test-peer", "LB_TEST_PEER")?)?;
        command.arg("session").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = start(command).with_context(|| format!("peer of {name}"))?;
        let (orders, reports) = (child.stdin.take(), child.stdout.take());
        let pipes = Pipes {
            orders: orders.context("standard input of the peer")?,
            reports: BufReader::new(reports.context("standard output of the peer")?),
        };
        let (pipes, next) = (Mutex::new(pipes), AtomicU64::new(0));
        Ok(Self { name: name.to_owned(), child, pipes, next })
    }

    /// Asks once, through a new socket.
    pub fn ask(&self, ask: Ask) -> Result<Answer, Failure> {
        self.asked(&Order::Ask(ask))
    }

    /// Asks `times` times, each time through a new socket.
    pub fn ask_many(&self, ask: Ask, times: u32) -> Result<Tally, Failure> {
        self.tallied(&Order::AskMany { ask, times })
    }

    /// Asks both servers `times` times through one unconnected UDP socket, with both questions under way at once.
    /// Answers are counted by their source address; an answer that does not come from the server that was asked is a
    /// failure.
    pub fn ask_both(&self, to: [SocketAddr; 2], times: u32) -> Result<Tally, Failure> {
        self.tallied(&Order::AskBoth { to, times })
    }

    /// Opens a socket that stays open: a connection, or a UDP socket with a port of its own.
    pub fn keep(&self, ask: Ask) -> Result<Kept<'_>, Failure> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.done(&Order::Open { id, ask })?;
        Ok(Kept { peer: self, id, ask })
    }

    /// Asks every `pause` milliseconds until stopped: through one socket (`kept`), or through a new one each time.
    ///
    /// Only lost answers are failures: the timeout is long enough for answers that are late on a busy machine.
    pub fn load(&self, ask: Ask, kept: bool, pause_milliseconds: u64) -> Result<Load<'_>, Failure> {
        let ask = ask.within(ask.milliseconds.unwrap_or(LATE));
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.done(&Order::StartLoad { id, ask, kept, pause_milliseconds })?;
        Ok(Load { peer: self, id })
    }

    /// Opens `count` sockets, and asks through them round after round until the result is dropped.
    pub fn rounds(&self, ask: Ask, count: u64) -> Result<Many<'_>, Failure> {
        let ask = ask.within(ask.milliseconds.unwrap_or(LATE));
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.done(&Order::StartRounds { id, ask, count })?;
        Ok(Many { peer: self, id })
    }

    /// Listens at these addresses and this port; the server is reachable when this returns.
    pub fn serve(
        &self,
        protocol: Protocol,
        addresses: &[IpAddr],
        port: u16,
    ) -> Result<(), Failure> {
        addresses.iter().try_for_each(|address| {
            let (name, at) = (self.name.clone(), SocketAddr::new(*address, port));
            self.done(&Order::Serve { name, protocol, at })
        })
    }

    /// Stops listening at these addresses and this port.
    pub fn stop_serving(
        &self,
        protocol: Protocol,
        addresses: &[IpAddr],
        port: u16,
    ) -> Result<(), Failure> {
        addresses.iter().try_for_each(|address| {
            self.done(&Order::StopServing { protocol, at: SocketAddr::new(*address, port) })
        })
    }

    fn done(&self, order: &Order) -> Result<(), Failure> {
        let report = self.order(order)?;
        if let Report::Done(result) = report { result } else { Err(self.confused(&report)) }
    }

    fn asked(&self, order: &Order) -> Result<Answer, Failure> {
        let report = self.order(order)?;
        if let Report::Asked(result) = report { result } else { Err(self.confused(&report)) }
    }

    fn tallied(&self, order: &Order) -> Result<Tally, Failure> {
        let report = self.order(order)?;
        if let Report::Tallied(tally) = report { Ok(tally) } else { Err(self.confused(&report)) }
    }

    /// Asks many questions at the same time, and returns the outcomes of each, in the same order.
    pub fn survey(&self, inquiries: Vec<Inquiry>) -> Result<Vec<Endings>, Failure> {
        let report = self.order(&Order::Survey(inquiries))?;
        if let Report::Surveyed(endings) = report {
            Ok(endings)
        } else {
            Err(self.confused(&report))
        }
    }

    fn order(&self, order: &Order) -> Result<Report, Failure> {
        self.converse(order)
            .map_err(|error| Failure::Other(format!("peer of {}: {error:#}", self.name)))
    }

    fn converse(&self, order: &Order) -> Result<Report> {
        let order = serde_json::to_string(order)?;
        let mut report = String::new();
        let mut pipes = locked(&self.pipes);
        writeln!(pipes.orders, "{order}")?;
        pipes.reports.read_line(&mut report)?;
        drop(pipes);
        serde_json::from_str(&report).with_context(|| format!("report {report:?}"))
    }

    fn confused(&self, report: &Report) -> Failure {
        let report = serde_json::to_string(report).unwrap_or_default();
        Failure::Other(format!("peer of {} said {report}", self.name))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Either call fails only if the process has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
