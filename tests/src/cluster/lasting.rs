//! Connections and UDP sockets of all clients of a Service, which stay open while its backends change.
//!
//! Half of them ask continuously, so that each change meets questions under way; the others are silent until the test
//! uses them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{Cluster, Published};
use crate::traffic::{Kept, Ledger, Many, Protocol};
use crate::wait::wait_until_ok;

/// The deadline for two rounds of questions: within it each question is answered or lost.
const ROUNDS: Duration = Duration::from_mins(5);
/// The number of rounds after a change. Since a change may fall into a round, the second one lies wholly after it.
const SINCE: u64 = 2;

/// The number of sockets of one transport.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Sockets that are silent between two calls of [`Lasting::go_on`].
    pub silent: usize,
    /// Sockets that ask continuously.
    pub asking: usize,
    /// Whether another server may answer the continuous sockets of node processes after a change, because their flows
    /// begin again.
    pub hosts_begin_again: bool,
}

/// A silent socket, its description, and the server that answered it first.
#[derive(Debug)]
struct Silent<'a> {
    what: String,
    kept: Kept<'a>,
    first: String,
}

/// Sockets of one client that ask continuously, and their description.
#[derive(Debug)]
struct Asking<'a> {
    what: String,
    many: Many<'a>,
    begins_again: bool,
}

impl Asking<'_> {
    /// Whether a socket lost a question, or was answered by another server without permission.
    fn is_harmed(&self, ledger: &Ledger) -> bool {
        ledger.lost() > 0 || !(self.begins_again || ledger.moved.is_empty())
    }
}

/// Sockets that stay open while the test changes the cluster.
#[derive(Debug)]
pub struct Lasting<'a> {
    silent: Vec<Silent<'a>>,
    asking: Vec<Asking<'a>>,
}

impl<'a> Lasting<'a> {
    /// Opens sockets of all clients; `sizes` gives their total number for each transport.
    pub fn open(
        cluster: &'a Cluster,
        service: &Published,
        sizes: impl Fn(Protocol) -> Sizes,
    ) -> Result<Self> {
        let (mut silent, mut asking) = (Vec::new(), Vec::new());
        let nodes = cluster.rig().topology().nodes();
        // Datagrams are last, because netfilter forgets a UDP socket with one question sooner than a connection.
        for protocol in Protocol::ALL {
            let mut askers = cluster.askers(service)?;
            askers.retain(|(_, question)| question.protocol == protocol);
            let sizes = sizes(protocol);
            let sets = askers.len();
            for (from, question) in askers {
                let what = format!("{} asks {} by {protocol}", from.name(), question.to);
                for _ in 0..sizes.silent.div_ceil(sets) {
                    let kept = from.peer().keep(question).context(what.clone())?;
                    let first = kept.ask().context(what.clone())?.server;
                    silent.push(Silent { what: what.clone(), kept, first });
                }
                let number = sizes.asking.div_ceil(sets) as u64;
                let many = from.peer().rounds(question, number).context(what.clone())?;
                let is_host = nodes.iter().any(|node| node.name() == from.name());
                let begins_again = sizes.hosts_begin_again && is_host;
                asking.push(Asking { what, many, begins_again });
            }
        }
        Ok(Self { silent, asking })
    }

    /// Fails unless each socket is answered by the server that answered it first (or by any, for sockets whose flows
    /// may begin again). Silent sockets are used once now. Continuous sockets must have lost no question since they
    /// were opened, and complete further whole rounds now.
    pub fn go_on(&self, when: &str) -> Result<()> {
        let _answered: u64 = self.unharmed().with_context(|| when.to_owned())?;
        let mut lost = BTreeMap::<String, u64>::new();
        for Silent { what, kept, first } in &self.silent {
            let how = match kept.ask() {
                Ok(answer) if answer.server == *first => continue,
                Ok(answer) => format!("by {}, not {first}", answer.server),
                Err(failure) => failure.to_string(),
            };
            *lost.entry(format!("{what}: {how}")).or_default() += 1;
        }
        ensure!(lost.is_empty(), "{when}, of {} silent ones: {lost:#?}", self.silent.len());
        for asking in &self.asking {
            let enough = asking.many.so_far()?.rounds + SINCE;
            wait_until_ok(ROUNDS, &format!("{}: whole rounds", asking.what), || {
                let ledger = asking.many.so_far()?;
                ensure!(asking.is_harmed(&ledger) || ledger.rounds >= enough, "{ledger:?}");
                Ok(())
            })?;
        }
        self.unharmed().map(drop).with_context(|| when.to_owned())
    }

    /// Returns the number of answers to the continuous sockets; fails if one of them was harmed.
    pub fn unharmed(&self) -> Result<u64> {
        let mut answered = 0;
        let mut harmed = BTreeMap::new();
        for asking in &self.asking {
            let ledger = asking.many.so_far()?;
            answered += ledger.answered;
            if asking.is_harmed(&ledger) {
                drop(harmed.insert(&asking.what, ledger));
            }
        }
        ensure!(harmed.is_empty(), "of {} sets that ask: {harmed:#?}", self.asking.len());
        Ok(answered)
    }

    /// Returns the number of sockets.
    pub fn count(&self) -> Result<u64> {
        let asking = self.asking.iter().map(|asking| Ok(asking.many.so_far()?.sockets));
        Ok(self.silent.len() as u64 + asking.sum::<Result<u64>>()?)
    }

    /// Returns the number of continuous sockets that lost a question.
    pub fn lost(&self) -> Result<u64> {
        self.asking.iter().map(|asking| Ok(asking.many.so_far()?.lost())).sum()
    }
}
