//! `lb-agent takeover`: what is found of kube-proxy, its rules removed when asked, and the count until nothing is left.

use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::{Found, Frontends, anchor};
use crate::datapath::{self, OpenError, open};

/// From one look to the next.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Remove kube-proxy's rules.
    pub removes: bool,
    /// Wait until nothing is left.
    pub waits: bool,
    /// For so long at most; nothing: as long as it takes.
    pub within: Option<Duration>,
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Rules or connections.
    #[error(transparent)]
    Takeover(#[from] super::Error),
    /// There is no data path that could take over.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An agent runs.
    #[error(transparent)]
    Datapath(#[from] datapath::Error),
    /// Nothing else serves: the data path stays.
    #[error(
        "kube-proxy's rules did not come within {} s, and the data path stays as it is: start \
         kube-proxy, or run this without --after-rules",
        .0.as_secs()
    )]
    NoRules(Duration),
    /// Nobody reads on.
    #[error("write")]
    Write(#[from] io::Error),
}

/// Prints what it finds; true when nothing of kube-proxy is left in the end.
pub fn takeover(dir: &Path, options: Options, out: &mut impl Write) -> Result<bool, Error> {
    let maps = open(dir)?;
    let began = Instant::now();
    let look = || -> Result<Found, Error> {
        let frontends = Frontends::of(&maps).map_err(Error::Takeover)?;
        Ok(Found::look(Some(&frontends))?)
    };
    let mut found = look()?;
    tell(&found, out)?;
    if options.removes && !found.rules.is_empty() {
        // The agent has made it, if it runs.
        anchor::put().map_err(|error| super::Error::System("anchor", error))?;
        for what in found.rules.remove()? {
            writeln!(out, "removed {what}")?;
        }
        found = look()?;
    }
    loop {
        if options.removes && found.connections.is_empty() {
            for what in found.rules.remove_device()? {
                writeln!(out, "removed {what}")?;
            }
            found = look()?;
        }
        let is_late = options.within.is_some_and(|within| began.elapsed() >= within);
        if !found.is_under_way() || !options.waits || is_late {
            break;
        }
        thread::park_timeout(AGAIN);
        let next = look()?;
        if next.to_string() != found.to_string() {
            tell(&next, out)?;
        }
        found = next;
    }
    if !found.is_under_way() {
        writeln!(out, "nothing left of kube-proxy")?;
    }
    Ok(!found.is_under_way())
}

fn tell(found: &Found, out: &mut impl Write) -> Result<(), Error> {
    writeln!(out, "{found}")?;
    Ok(out.flush()?)
}
