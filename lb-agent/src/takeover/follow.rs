//! The agent's part: looks once a second until nothing of kube-proxy is left, and tells the data path.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Error, Found, Frontends, Rules, anchor};
use crate::maps::Maps;

/// From one look to the next while a take-over is under way, and while none is.
const OFTEN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(10);

/// The agent's view of a take-over.
#[derive(Debug)]
pub struct Takeover {
    found: watch::Receiver<Found>,
    is_programmed: Arc<AtomicBool>,
}

impl Takeover {
    /// Whether segments and datagrams of others' connections must pass.
    pub fn is_under_way(&self) -> bool {
        self.found.borrow().is_under_way()
    }

    /// The problem that operators are told of: tuples that `INHERITED` has no room for.
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

    /// The maps have every Service: from now on only connections to frontends count.
    pub fn programmed(&self) {
        self.is_programmed.store(true, Ordering::Relaxed);
    }
}

/// Looks for the first time, before programs are attached. Whatever
/// netfilter translates counts: nobody knows the Services yet.
pub async fn begin(maps: Arc<Maps>) -> Takeover {
    let is_programmed = Arc::new(AtomicBool::new(false));
    let first = look(&maps, false).await.unwrap_or_else(|error| {
        complain(&error);
        Found { rules: Rules::find(), ..Found::default() }
    });
    if first.is_under_way() {
        info!(connections = first.connections.len(), rules = %first.rules, "taking over from kube-proxy");
    }
    let (sender, found) = watch::channel(first);
    drop(tokio::spawn(follow(maps, sender, Arc::clone(&is_programmed))));
    Takeover { found, is_programmed }
}

async fn follow(maps: Arc<Maps>, sender: watch::Sender<Found>, is_programmed: Arc<AtomicBool>) {
    let mut has_failed = false;
    loop {
        let was_under_way = sender.borrow().is_under_way();
        sleep(if was_under_way { OFTEN } else { SELDOM }).await;
        let found = match look(&maps, is_programmed.load(Ordering::Relaxed)).await {
            Ok(found) => found,
            // The last result counts until there is another.
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    complain(&error);
                }
                continue;
            }
        };
        has_failed = false;
        if found.is_under_way() != was_under_way {
            let (connections, rules) = (found.connections.len(), &found.rules);
            let is_over = was_under_way;
            info!(is_over, connections, %rules, "take-over from kube-proxy changed");
        }
        if sender.send(found).is_err() {
            return;
        }
    }
}

fn complain(error: &Error) {
    warn!(error = crate::chain(error), "connections of kube-proxy may not be preserved");
}

/// Looks, and does what follows from it.
async fn look(maps: &Arc<Maps>, is_programmed: bool) -> Result<Found, Error> {
    let maps = Arc::clone(maps);
    let looked = spawn_blocking(move || {
        let frontends = if is_programmed { Some(Frontends::of(&maps)?) } else { None };
        let mut found = Found::look(frontends.as_ref())?;
        if let Some(frontends) = &frontends {
            forget_stale(frontends, &mut found)?;
            // A client may take the port of one for a connection that we translate: netfilter would shift the port as
            // long as it translates anything, and the connection would break with the end of the take-over.
            super::forget(&found.ended)?;
        }
        hold(&maps, &found);
        found.left_out = maps.set_inherited(&found.hashes())?;
        Ok(found)
    });
    looked.await.map_err(|error| Error::System("look for kube-proxy", error.into()))?
}

/// kube-proxy would do it: datagrams to a backend that left are lost as long as their client sends them.
fn forget_stale(frontends: &Frontends<'_>, found: &mut Found) -> Result<(), Error> {
    let stale: Vec<_> = frontends.stale(&found.connections)?.into_iter().cloned().collect();
    super::forget(&stale)?;
    found.connections.retain(|connection| !stale.contains(connection));
    Ok(())
}

/// Keeps netfilter's translations going as long as they are needed.
fn hold(maps: &Maps, found: &Found) {
    let held = if found.is_under_way() { anchor::put() } else { release(maps) };
    match held {
        Ok(true) => info!(
            is_there = found.is_under_way(),
            "nat chain that preserves kube-proxy's connections"
        ),
        Ok(false) => {}
        Err(error) if found.is_under_way() => {
            warn!(%error, "no nat chain: kube-proxy's connections will end with its rules");
        }
        // Without nftables there is none.
        Err(error) => tracing::debug!(%error, "no nat chain to remove"),
    }
}

/// Ends a take-over: says whether one was under way.
///
/// Netfilter remembers what has ended for two minutes, with the port that it had towards its backend. Should
/// kube-proxy's rules return meanwhile, a connection of this host that has the port by then would get another, and
/// its backend would reset it. So it is made to forget first: with the chain gone the take-over is over.
fn release(maps: &Maps) -> io::Result<bool> {
    if !anchor::is_there()? {
        return Ok(false);
    }
    if let Err(error) = super::forget_ended(maps) {
        complain(&error);
    }
    anchor::remove()
}
