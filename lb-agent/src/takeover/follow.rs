//! The agent's part of a take-over: checks about once a second until nothing of kube-proxy is left, and informs the
//! data path.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Connection, Error, KubeProxyRemains, MapFrontends, Rules, Tuples, anchor};
use crate::maps::Maps;

/// Pauses between checks: while a take-over is under way, and while none is.
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(10);
/// A pause is at least this many times as long as the last check took.
const SHARE: u32 = 5;

/// The agent's view of a take-over.
#[derive(Debug)]
pub struct Takeover {
    found: watch::Receiver<KubeProxyRemains>,
    is_programmed: Arc<AtomicBool>,
}

impl Takeover {
    /// Reports whether packets of connections that netfilter translates must pass.
    pub fn is_under_way(&self) -> bool {
        self.found.borrow().is_under_way()
    }

    /// Returns the problem for operators: `INHERITED` has no room for some tuples.
    pub fn problem(&self) -> Option<String> {
        let left_out = self.found.borrow().left_out;
        let problem = || {
            format!(
                "take-over: INHERITED is full and lacks {left_out} tuples of kube-proxy's connections, whose \
                 datagrams may get another backend; raise it with --map-size INHERITED=N"
            )
        };
        (left_out > 0).then(problem)
    }

    /// Records that the maps have every Service: from now on only connections to frontends count.
    pub fn programmed(&self) {
        self.is_programmed.store(true, Ordering::Relaxed);
    }
}

/// Checks for the first time, before programs are attached. All connections that netfilter translates count, because
/// the Services are not known yet.
pub async fn begin(maps: Arc<Maps>) -> Takeover {
    let is_programmed = Arc::new(AtomicBool::new(false));
    // A failure must not keep the agent from starting. The rules are then known without the connections.
    let first = look(&maps, None, OFTEN).await.unwrap_or_else(|error| {
        complain(&error);
        KubeProxyRemains { rules: Rules::find(), ..KubeProxyRemains::default() }
    });
    if first.is_under_way() {
        report_begin(&first);
    }
    let (sender, found) = watch::channel(first);
    drop(tokio::spawn(follow(maps, sender, Arc::clone(&is_programmed))));
    Takeover { found, is_programmed }
}

async fn follow(
    maps: Arc<Maps>,
    sender: watch::Sender<KubeProxyRemains>,
    is_programmed: Arc<AtomicBool>,
) {
    let mut has_failed = false;
    // Without rules and Services, the connections of the first check may be of any program.
    let mut earlier = kube_proxys(&sender.borrow(), false).unwrap_or_default();
    let mut took = Duration::ZERO;
    loop {
        let was_under_way = sender.borrow().is_under_way();
        // kube-proxy can be started again at any time, so the checks never end.
        sleep(pause(was_under_way, took)).await;
        let is_programmed = is_programmed.load(Ordering::Relaxed);
        let began = Instant::now();
        let next = until_next(took);
        let looked = look(&maps, is_programmed.then(|| earlier.clone()), next).await;
        took = began.elapsed();
        let found = match looked {
            Ok(found) => found,
            // The last result stays valid until the next one.
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    complain(&error);
                }
                continue;
            }
        };
        has_failed = false;
        if let Some(known) = kube_proxys(&found, is_programmed) {
            earlier = known;
        }
        match (was_under_way, found.is_under_way()) {
            (true, false) => info!("take-over from kube-proxy complete"),
            (false, true) => report_begin(&found),
            (true, true) | (false, false) => {}
        }
        if sender.send(found).is_err() {
            return;
        }
    }
}

/// Returns the time until the next check, after one that took `took`: netfilter may have a million connections.
fn pause(is_under_way: bool, took: Duration) -> Duration {
    let least = if is_under_way { OFTEN } else { SELDOM };
    least.max(took * SHARE)
}

/// Returns the time from the listing of connections to the next result, after a check that took `took`; at most half of
/// netfilter's default for unanswered datagrams: those of an active sender stay.
fn until_next(took: Duration) -> Duration {
    (pause(true, took) + 2 * took + OFTEN).min(Duration::from_secs(15))
}

/// Returns the connections that are kube-proxy's; `None` if the search could not distinguish them.
fn kube_proxys(found: &KubeProxyRemains, is_programmed: bool) -> Option<Tuples> {
    (is_programmed || !found.rules.is_empty()).then(|| found.tuples())
}

/// Logs that a take-over begins, or begins again because kube-proxy was started again.
fn report_begin(found: &KubeProxyRemains) {
    info!(connections = found.connections.len(), rules = %found.rules, "taking over from kube-proxy");
}

fn complain(error: &Error) {
    warn!(error = crate::chain(error), "connections of kube-proxy may not be preserved");
}

/// Checks for kube-proxy, and updates conntrack entries, the anchor and `INHERITED` accordingly.
///
/// `earlier` are the connections that counted before, and `None` as long as the maps lack Services: then all count.
/// `next`: the time until the next check.
async fn look(
    maps: &Arc<Maps>,
    earlier: Option<Tuples>,
    next: Duration,
) -> Result<KubeProxyRemains, Error> {
    let maps = Arc::clone(maps);
    let looked = spawn_blocking(move || {
        let frontends = match earlier {
            Some(earlier) => Some(MapFrontends::of(&maps)?.after(earlier)),
            None => None,
        };
        let mut found = KubeProxyRemains::look(frontends.as_ref())?;
        let stale = match &frontends {
            Some(frontends) => take_stale(frontends, &mut found)?,
            None => Vec::new(),
        };
        hold(&maps, &found);
        // The data path forgets a connection before netfilter does: without either, a datagram that the data path
        // leaves to netfilter would be lost.
        found.left_out = maps.set_inherited(&found.hashes(next))?;
        super::forget(&stale)?;
        if frontends.is_some() {
            // A client may reuse the port of an ended connection for one that our programs translate. While netfilter
            // translates anything, it would change that port, and the connection would break at the end of the
            // take-over.
            super::forget(&found.ended)?;
        }
        Ok(found)
    });
    looked.await.map_err(|error| Error::System("look for kube-proxy", error.into()))?
}

/// Takes out the connections of datagrams to backends that have gone. netfilter must forget them, as kube-proxy deletes
/// them (contract 5): otherwise the datagrams are lost as long as their client sends them.
fn take_stale(
    frontends: &MapFrontends<'_>,
    found: &mut KubeProxyRemains,
) -> Result<Vec<Connection>, Error> {
    let stale: Vec<_> = frontends.stale(&found.connections)?.into_iter().cloned().collect();
    found.connections.retain(|connection| !stale.contains(connection));
    Ok(stale)
}

/// Keeps netfilter's translations going as long as they are needed.
fn hold(maps: &Maps, found: &KubeProxyRemains) {
    let held = if found.is_under_way() { anchor::put() } else { release(maps) };
    match held {
        Ok(true) if found.is_under_way() => info!("nat chain for kube-proxy's connections added"),
        Ok(true) => info!("nat chain for kube-proxy's connections removed"),
        Ok(false) => {}
        Err(error) if found.is_under_way() => {
            warn!(%error, "no nat chain: kube-proxy's connections will end with its rules");
        }
        // Without nftables in the kernel there is no chain.
        Err(error) => tracing::debug!(%error, "no nat chain to remove"),
    }
}

/// Ends a take-over. Returns whether one was under way.
///
/// netfilter remembers ended connections for two minutes, with their port towards the backend. If kube-proxy's rules
/// returned meanwhile, a connection of this host with that port would be moved to another one, and its backend would
/// reset it. So these entries are deleted first; without the chain, the take-over is over.
fn release(maps: &Maps) -> io::Result<bool> {
    if !anchor::is_there()? {
        return Ok(false);
    }
    if let Err(error) = super::forget_ended(maps) {
        complain(&error);
    }
    anchor::remove()
}

#[cfg(test)]
mod tests {
    use lb_common::addr::{Endpoint, Ip, Port, Protocol};
    use lb_common::flow::Tuple;

    use super::*;

    #[test]
    fn checks_that_take_long_are_seldom() {
        let long = Duration::from_secs(4);
        assert_eq!([pause(true, Duration::ZERO), pause(false, Duration::ZERO)], [OFTEN, SELDOM]);
        assert_eq!([pause(true, long), pause(false, long)], [long * SHARE; 2]);
    }

    /// Only a segment of TCP shows itself whether it begins a connection.
    #[test]
    fn questions_of_datagrams_and_associations_are_recorded() {
        let end = |port| Endpoint::new(Ip::v4([10, 0, 0, 1]), Port::new(port));
        let asked = Tuple::new(end(40_000), end(80));
        for (protocol, count) in [(Protocol::TCP, 1), (Protocol::UDP, 2), (Protocol::SCTP, 2)] {
            let connections = vec![Connection::between(protocol, asked)];
            let found = KubeProxyRemains { connections, ..KubeProxyRemains::default() };
            assert_eq!(found.hashes(OFTEN).len(), count, "{protocol:?}");
            let connections = found.connections.iter().map(|it| it.clone().unanswered(1)).collect();
            let ending = KubeProxyRemains { connections, ..KubeProxyRemains::default() };
            assert_eq!(ending.hashes(OFTEN).len(), 1, "{protocol:?}: of the answers alone");
        }
    }

    /// Before the Services are known, those of Docker are among the connections that the check finds.
    #[test]
    fn connections_are_kube_proxys_once_the_services_are_known() {
        let without_rules = KubeProxyRemains::default();
        assert_eq!(kube_proxys(&without_rules, false), None);
        assert_eq!(kube_proxys(&without_rules, true), Some(Tuples::new()));
    }
}
