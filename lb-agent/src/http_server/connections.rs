//! Connections that are being answered. Their number is bounded, and a new one displaces one of the source address
//! that has most of them, if those are many; else one that has sent no whole request in time, or one that is idle after
//! an answer.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

/// Connections of all Services at a time: each takes ten kilobytes.
const CONNECTIONS: usize = 1_536;
/// Connections of one Service at a time, of which a client that is slow on purpose pushes out its own first. A
/// thousand such clients fit, for a probe from their address is not told apart from them before it has asked.
const PER_SERVICE: usize = 1_280;
/// A source has many connections of a Service if it has more than this part of the places: fewer are those of a
/// balancer that keeps some open, which must not lose them to as many silent sources with one connection each.
const MANY: usize = 64;
/// A connection may take this long to send its request before it counts as silent: a probe on a busy machine.
const GRACE: Duration = Duration::from_millis(250);

/// How far a connection is.
#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    state: AtomicU8,
}

impl Progress {
    const NEW: u8 = 0;
    const ASKS: u8 = 1;
    const ANSWERED: u8 = 2;

    /// It was accepted now.
    pub(crate) fn begin() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), state: AtomicU8::new(Self::NEW) })
    }

    /// It has sent a whole request.
    pub(super) fn asks(&self) {
        self.state.store(Self::ASKS, Ordering::Relaxed);
    }

    /// Its request is answered, and it may send another.
    pub(super) fn is_answered(&self) {
        self.state.store(Self::ANSWERED, Ordering::Relaxed);
    }

    pub(super) fn has_asked(&self) -> bool {
        self.state.load(Ordering::Relaxed) != Self::NEW
    }

    /// How little is lost with it.
    fn rank(&self) -> Worth {
        match self.state.load(Ordering::Relaxed) {
            Self::ANSWERED => Worth::Idle,
            Self::ASKS => Worth::Asks,
            _ if self.began.elapsed() >= GRACE => Worth::Silent,
            _ => Worth::Fresh,
        }
    }
}

/// The last one is displaced first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    Asks,
    Fresh,
    Idle,
    Silent,
}

/// Those that have not ended, the oldest first.
#[derive(Debug)]
pub(crate) struct Connections {
    most: usize,
    most_of_one: usize,
    all: Mutex<VecDeque<Connection>>,
}

/// One that is being answered.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The number of its owner: of the Service, for example.
    pub(crate) of: usize,
    /// Where it comes from.
    pub(crate) from: IpAddr,
    pub(crate) progress: Arc<Progress>,
    /// The task that answers it.
    pub(crate) task: AbortHandle,
}

impl Default for Connections {
    fn default() -> Self {
        Self::bounded(CONNECTIONS, PER_SERVICE)
    }
}

impl Connections {
    /// At most so many, and so many of one.
    pub(crate) fn bounded(most: usize, most_of_one: usize) -> Self {
        Self { most, most_of_one, all: Mutex::default() }
    }

    /// Lets a connection in, and ends another where that is one too many.
    pub(crate) fn admit(&self, new: Connection) {
        let mut all = self.all();
        all.retain(|connection| !connection.task.is_finished());
        let is_own = |connection: &&Connection| connection.of == new.of;
        let own_are_many = all.iter().filter(is_own).count() >= self.most_of_one;
        let few = self.most_of_one / MANY;
        let at = if own_are_many {
            worst(&all, few, |connection| connection.of == new.of)
        } else if all.len() >= self.most {
            worst(&all, few, |_| true)
        } else {
            None
        };
        if let Some(pushed_out) = at.and_then(|at| all.remove(at)) {
            pushed_out.task.abort();
        }
        all.push_back(new);
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<Connection>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one to displace: where a source has more than `few` connections of a Service, one of the source that has most;
/// of those the one with least to lose, and of equals the oldest.
fn worst(
    all: &VecDeque<Connection>,
    few: usize,
    counts: impl Fn(&Connection) -> bool,
) -> Option<usize> {
    // A balancer probes each Service: its connections of all of them are not many of one.
    let owner = |connection: &Connection| (connection.of, source(connection.from));
    let mut of_owner: BTreeMap<(usize, IpAddr), usize> = BTreeMap::new();
    for connection in all.iter().filter(|connection| counts(connection)) {
        *of_owner.entry(owner(connection)).or_default() += 1;
    }
    let candidates = all.iter().enumerate().filter(|(_, connection)| counts(connection));
    let rank = |connection: &Connection| {
        let count = of_owner.get(&owner(connection)).copied().unwrap_or_default();
        (count.max(few), connection.progress.rank())
    };
    // The oldest of equals, which is the first.
    candidates.rev().max_by_key(|(_, connection)| rank(connection)).map(|(at, _)| at)
}

/// An address of IPv6 stands for its network: a client has as many of them as it likes.
fn source(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & !u128::from(u64::MAX)).into()),
        ip @ IpAddr::V4(_) => ip,
    }
}
