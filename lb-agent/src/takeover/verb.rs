//! `lb-agent takeover`: reports what is left of kube-proxy, removes its rules if requested, and waits until nothing is
//! left.

use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::{KubeProxyRemains, MapFrontends, anchor};
use crate::datapath::{self, OpenError, open_here};

/// Interval between checks.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Remove kube-proxy's rules.
    pub removes: bool,
    /// Wait until nothing is left.
    pub waits: bool,
    /// Time limit of the wait; `None`: no limit.
    pub within: Option<Duration>,
}

/// An error of the take-over verbs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Rules or connections could not be read or changed.
    #[error(transparent)]
    Takeover(#[from] super::Error),
    /// There is no data path that could take over.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An agent is running, or the data path is not usable.
    #[error(transparent)]
    Datapath(#[from] datapath::Error),
    /// kube-proxy's rules did not appear, so the data path stays: nothing else would serve.
    #[error(
        "kube-proxy's rules did not appear within {} s, and the data path stays active: start \
         kube-proxy, or run this without --after-rules",
        .0.as_secs()
    )]
    NoRules(Duration),
    /// The output could not be written.
    #[error("write")]
    Write(#[from] io::Error),
}

/// Reports what is left of kube-proxy. Returns true if nothing is left at the end.
pub fn takeover(dir: &Path, options: Options, out: &mut impl Write) -> Result<bool, Error> {
    let maps = open_here(dir)?;
    let began = Instant::now();
    let look = |earlier: &KubeProxyRemains| -> Result<KubeProxyRemains, Error> {
        let frontends = MapFrontends::of(&maps).map_err(Error::Takeover)?;
        Ok(KubeProxyRemains::look(Some(&frontends.after(earlier.tuples())))?)
    };
    let mut found = look(&KubeProxyRemains::default())?;
    print(&found, out)?;
    if options.removes && !found.rules.is_empty() {
        // The agent has created it already, if it is running.
        anchor::put().map_err(|error| super::Error::System("anchor", error))?;
        for what in found.rules.remove()? {
            writeln!(out, "removed {what}")?;
        }
        found = look(&found)?;
    }
    loop {
        // The interface `kube-ipvs0` has the addresses of connections, so it stays until they have ended.
        if options.removes && found.connections.is_empty() {
            for what in found.rules.remove_device()? {
                writeln!(out, "removed {what}")?;
            }
            found = look(&found)?;
        }
        let is_late = options.within.is_some_and(|within| began.elapsed() >= within);
        if !found.is_under_way() || !options.waits || is_late {
            break;
        }
        thread::park_timeout(AGAIN);
        let next = look(&found)?;
        if next.to_string() != found.to_string() {
            print(&next, out)?;
        }
        found = next;
    }
    if !found.is_under_way() {
        writeln!(out, "nothing left of kube-proxy")?;
    }
    Ok(!found.is_under_way())
}

fn print(found: &KubeProxyRemains, out: &mut impl Write) -> Result<(), Error> {
    writeln!(out, "{found}")?;
    Ok(out.flush()?)
}
