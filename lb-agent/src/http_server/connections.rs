//! The open connections, bounded in number. A new one may displace another.
//!
//! If one source address has many connections, it displaces one of the source that has most. Otherwise it displaces one
//! that has sent no whole request in time, or one that is idle after an answer.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

/// Largest number of connections of all Services; each takes ten kilobytes.
const CONNECTIONS: usize = 1_536;
/// Largest number of connections of one Service. A client that is slow on purpose displaces its own first.
///
/// More than a thousand such clients fit, because a probe from their address cannot be distinguished from them before
/// it has sent its request.
const PER_SERVICE: usize = 1_280;
/// A source has many connections if it has more than this fraction (1/64) of a Service's places.
///
/// A load balancer may keep fewer connections open. It must not lose them to as many silent sources with one connection
/// each.
const MANY: usize = 64;
/// Time after which a connection without a request counts as silent: a probe on a busy machine may take that long.
const GRACE: Duration = Duration::from_millis(250);

/// The progress of a connection.
#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    state: AtomicU8,
}

impl Progress {
    const NEW: u8 = 0;
    const ASKS: u8 = 1;
    const ANSWERED: u8 = 2;

    /// Starts with a connection that was just accepted.
    pub(crate) fn begin() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), state: AtomicU8::new(Self::NEW) })
    }

    /// Records that a whole request has arrived.
    pub(super) fn asks(&self) {
        self.state.store(Self::ASKS, Ordering::Relaxed);
    }

    /// Records that the request is answered; another one may follow.
    pub(super) fn is_answered(&self) {
        self.state.store(Self::ANSWERED, Ordering::Relaxed);
    }

    pub(super) fn has_asked(&self) -> bool {
        self.state.load(Ordering::Relaxed) != Self::NEW
    }

    /// Returns how much would be lost by displacing the connection.
    fn rank(&self) -> Worth {
        match self.state.load(Ordering::Relaxed) {
            Self::ANSWERED => Worth::Idle,
            Self::ASKS => Worth::Asks,
            _ if self.began.elapsed() >= GRACE => Worth::Silent,
            _ => Worth::Fresh,
        }
    }
}

/// How much a displaced connection loses, from most to least: the last value is displaced first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    Asks,
    Fresh,
    Idle,
    Silent,
}

/// The connections that have not ended, oldest first.
#[derive(Debug)]
pub(crate) struct Connections {
    most: usize,
    most_of_one: usize,
    all: Mutex<VecDeque<HttpConnection>>,
}

/// An HTTP connection that is being answered.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    /// Number that identifies the owner, such as the Service.
    pub(crate) of: usize,
    /// Address of the client.
    pub(crate) from: IpAddr,
    pub(crate) progress: Arc<Progress>,
    /// Task that answers the connection.
    pub(crate) task: AbortHandle,
}

impl Default for Connections {
    fn default() -> Self {
        Self::bounded(CONNECTIONS, PER_SERVICE)
    }
}

impl Connections {
    /// Makes an empty set for at most `most` connections, and `most_of_one` of each owner.
    pub(crate) fn bounded(most: usize, most_of_one: usize) -> Self {
        Self { most, most_of_one, all: Mutex::default() }
    }

    /// Adds a connection, and ends another one if there are too many.
    pub(crate) fn admit(&self, new: HttpConnection) {
        let mut all = self.all();
        all.retain(|connection| !connection.task.is_finished());
        let is_own = |connection: &&HttpConnection| connection.of == new.of;
        let own_are_many = all.iter().filter(is_own).count() >= self.most_of_one;
        let few = self.most_of_one / MANY;
        // A client with too many connections loses one of its own; others lose one only if the server as a whole has
        // too many.
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

    fn all(&self) -> MutexGuard<'_, VecDeque<HttpConnection>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the index of the connection to displace.
///
/// If sources have more than `few` connections of a Service, the connection is of the source that has most; among these
/// it is the one that loses least, and of equals the oldest.
fn worst(
    all: &VecDeque<HttpConnection>,
    few: usize,
    counts: impl Fn(&HttpConnection) -> bool,
) -> Option<usize> {
    // A load balancer probes each Service from one address, so its connections are counted for each Service.
    let owner = |connection: &HttpConnection| (connection.of, source(connection.from));
    let mut of_owner: BTreeMap<(usize, IpAddr), usize> = BTreeMap::new();
    for connection in all.iter().filter(|connection| counts(connection)) {
        *of_owner.entry(owner(connection)).or_default() += 1;
    }
    let candidates = all.iter().enumerate().filter(|(_, connection)| counts(connection));
    let rank = |connection: &HttpConnection| {
        let count = of_owner.get(&owner(connection)).copied().unwrap_or_default();
        (count.max(few), connection.progress.rank())
    };
    // `max_by_key` returns the last of equals; reversed, that is the oldest.
    candidates.rev().max_by_key(|(_, connection)| rank(connection)).map(|(at, _)| at)
}

/// Returns the address that identifies a source; for IPv6 its /64, because a client can have any number of addresses in
/// it.
fn source(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6((ip.to_bits() & !u128::from(u64::MAX)).into()),
        ip @ IpAddr::V4(_) => ip,
    }
}
