//! Connections that are being answered. Their number is bounded, and a new one displaces one of the source address
//! that has most of them: first one that has sent no whole request in time, then one that is idle after an answer.

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
        let at = if own_are_many {
            worst(&all, |connection| connection.of == new.of)
        } else if all.len() >= self.most {
            worst(&all, |_| true)
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

/// Whom to displace: of the source with most of these connections the one with least to lose, and of equals the oldest.
fn worst(all: &VecDeque<Connection>, counts: impl Fn(&Connection) -> bool) -> Option<usize> {
    let mut of_source: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for connection in all.iter().filter(|connection| counts(connection)) {
        *of_source.entry(source(connection.from)).or_default() += 1;
    }
    let candidates = all.iter().enumerate().filter(|(_, connection)| counts(connection));
    let rank = |connection: &Connection| {
        let count = of_source.get(&source(connection.from)).copied().unwrap_or_default();
        (count, connection.progress.rank())
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

#[cfg(test)]
mod tests {
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;

    /// A connection that never ends by itself.
    fn idle(connections: &Connections, of: usize, from: &str, has_asked: bool) -> JoinHandle<()> {
        let task = tokio::spawn(std::future::pending());
        let state = AtomicU8::new(if has_asked { Progress::ANSWERED } else { Progress::NEW });
        let began = Instant::now().checked_sub(GRACE).expect("a machine that was just started");
        let progress = Arc::new(Progress { began, state });
        let from = from.parse().expect("an address");
        connections.admit(Connection { of, from, progress, task: task.abort_handle() });
        task
    }

    async fn is_pushed_out(task: JoinHandle<()>) -> bool {
        let ended = timeout(Duration::from_mins(1), task).await;
        ended.is_ok_and(|ended| ended.is_err_and(|error| error.is_cancelled()))
    }

    const OF_ALL: usize = 12;
    const OF_ONE: usize = 4;

    #[tokio::test]
    async fn who_is_new_pushes_out_the_oldest_of_its_own_service_first() {
        let connections = Connections::bounded(OF_ALL, OF_ONE);
        let of_other = idle(&connections, 1, "192.0.2.1", false);
        let mut all: Vec<_> =
            (0..OF_ONE).map(|_| idle(&connections, 0, "192.0.2.1", false)).collect();
        let newest = idle(&connections, 0, "192.0.2.1", false);
        assert!(is_pushed_out(all.remove(0)).await);
        assert!(all.iter().chain([&newest, &of_other]).all(|task| !task.is_finished()));
    }

    #[tokio::test]
    async fn who_is_new_pushes_out_the_oldest_of_all_where_all_places_are_taken() {
        let connections = Connections::bounded(OF_ALL, OF_ONE);
        let mut all = Vec::new();
        for of in 0..OF_ALL / OF_ONE {
            all.extend((0..OF_ONE).map(|_| idle(&connections, of, "192.0.2.1", false)));
        }
        let newest = idle(&connections, OF_ALL, "192.0.2.1", false);
        assert!(is_pushed_out(all.remove(0)).await);
        assert!(all.iter().chain([&newest]).all(|task| !task.is_finished()));
    }

    /// A thousand clients of one address, also of one network of IPv6, push out each other and no probe.
    #[tokio::test]
    async fn a_source_with_many_pushes_out_its_own() {
        for many in ["192.0.2.1", "2001:db8::1"] {
            let connections = Connections::bounded(8, 8);
            let probes: Vec<_> = ["198.51.100.1", "198.51.100.2", "2001:db8:1::1"]
                .map(|from| idle(&connections, 0, from, false))
                .into();
            let bad: Vec<_> = (0..20).map(|_| idle(&connections, 0, many, true)).collect();
            assert_eq!(connections.all().len(), 8);
            assert!(probes.iter().all(|probe| !probe.is_finished()), "{many}");
            drop(bad);
        }
    }

    #[tokio::test]
    async fn of_many_sources_those_that_have_not_asked_go_first() {
        let connections = Connections::bounded(4, 4);
        let probes = [1, 2].map(|n| idle(&connections, 0, &format!("192.0.2.{n}"), true));
        let mut silent = [3, 4].map(|n| idle(&connections, 0, &format!("192.0.2.{n}"), false));
        let newest = idle(&connections, 0, "192.0.2.5", false);
        let oldest = std::mem::replace(&mut silent[0], tokio::spawn(std::future::pending()));
        assert!(is_pushed_out(oldest).await);
        assert!(probes.iter().chain([&silent[1], &newest]).all(|task| !task.is_finished()));
    }

    /// A probe that was accepted a moment ago is not taken for a silent client.
    #[tokio::test]
    async fn who_came_a_moment_ago_is_not_displaced_by_the_next() {
        let connections = Connections::bounded(2, 2);
        let kept_alive = idle(&connections, 0, "192.0.2.1", true);
        let task = tokio::spawn(std::future::pending::<()>());
        let (from, handle) = ("192.0.2.1".parse().expect("an address"), task.abort_handle());
        connections.admit(Connection { of: 0, from, progress: Progress::begin(), task: handle });
        let newest = idle(&connections, 0, "192.0.2.1", false);
        assert!(is_pushed_out(kept_alive).await);
        assert!(!task.is_finished() && !newest.is_finished());
    }

    #[tokio::test]
    async fn who_has_ended_takes_no_place() {
        let connections = Connections::bounded(OF_ALL, OF_ONE);
        let first = idle(&connections, 0, "192.0.2.1", false);
        for _ in 0..2 * OF_ONE {
            let task = tokio::spawn(std::future::ready(()));
            let (handle, from) = (task.abort_handle(), "192.0.2.1".parse().expect("an address"));
            task.await.expect("no panic");
            let progress = Progress::begin();
            connections.admit(Connection { of: 0, from, progress, task: handle });
        }
        assert!(!first.is_finished());
        assert_eq!(connections.all().len(), 2, "the idle one, and the last");
    }
}
