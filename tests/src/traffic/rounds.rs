//! Sockets that stay open and ask round after round, on a background thread: changes meanwhile meet questions under
//! way.
//!
//! The ledger records whether each question was answered, and whether by the server that answered the socket before.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::background::Background;
use super::conversation::{Conversation, open};
use super::{Ask, Failure};
use crate::join_all::locked;
use crate::wait::pass;

/// The number of questions under way at a time: the backlog queue of one CPU holds a thousand packets.
const AT_ONCE: usize = 32;
/// The pause between two such sets of questions: sixteen threads of this kind then leave half of the time of two CPUs.
const PAUSE: Duration = Duration::from_millis(50);
/// The number of failures that are reported with their time.
const NAMED: usize = 5;

/// The account of sockets that ask in rounds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// The number of sockets that were opened.
    pub sockets: u64,
    /// The number of complete rounds, in each of which every socket asked.
    pub rounds: u64,
    /// The number of answered questions.
    pub answered: u64,
    /// The number of answers by another server than the one that answered this socket before, by the names of both.
    pub moved: BTreeMap<String, u64>,
    /// The number of unanswered questions, by their failure.
    pub lost: BTreeMap<String, u64>,
    /// The first failures of both kinds: the time, the socket's own address, and the kind.
    pub first: Vec<String>,
}

impl Ledger {
    /// Returns the number of sockets that lost a question. They ask no more.
    pub fn lost(&self) -> u64 {
        self.lost.values().sum()
    }

    fn record(&mut self, name: &str, what: &str) {
        if self.first.len() < NAMED {
            self.first.push(format!("{} {name}: {what}", Timestamp::now()));
        }
    }
}

/// A socket, its own address as text, and the name of the last server that answered it.
struct Member {
    conversation: Conversation,
    name: String,
    server: String,
    is_lost: bool,
}

/// A thread that asks through its sockets until it is dropped, which closes them.
#[derive(Debug)]
pub(crate) struct Rounds(Background<Ledger>);

impl Rounds {
    /// Opens `count` sockets, asks once through each, and continues to ask.
    pub(crate) fn start(ask: Ask, count: u64) -> Result<Self, Failure> {
        let member = |_| {
            let mut conversation = open(&ask)?;
            let answer = conversation.ask(&ask)?;
            let name = answer.local.to_string();
            Ok(Member { conversation, name, server: answer.server, is_lost: false })
        };
        let members: Vec<Member> = (0..count).map(member).collect::<Result<_, Failure>>()?;
        let ledger = Ledger { sockets: count, ..Ledger::default() };
        let work = move |stop: &_, ledger: &_| turn(members, &ask, stop, ledger);
        Ok(Self(Background::start(ledger, work)))
    }

    /// A copy of the account so far.
    pub(crate) fn so_far(&self) -> Ledger {
        self.0.so_far()
    }
}

fn turn(mut members: Vec<Member>, ask: &Ask, stop: &AtomicBool, ledger: &Mutex<Ledger>) {
    loop {
        for some in members.chunks_mut(AT_ONCE) {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            ask_all(some, ask, ledger);
            pass(PAUSE);
        }
        locked(ledger).rounds += 1;
    }
}

/// Sends all questions before it receives an answer.
fn ask_all(members: &mut [Member], ask: &Ask, ledger: &Mutex<Ledger>) {
    let mut asked = Vec::new();
    for member in members.iter_mut().filter(|member| !member.is_lost) {
        let sent = member.conversation.send(ask);
        asked.push((member, sent));
    }
    for (member, sent) in asked {
        let outcome = sent.and_then(|()| member.conversation.receive(ask));
        let mut ledger = locked(ledger);
        match outcome {
            Ok(answer) => {
                ledger.answered += 1;
                if answer.server != member.server {
                    let how = format!("from {} to {}", member.server, answer.server);
                    ledger.record(&member.name, &how);
                    *ledger.moved.entry(how).or_default() += 1;
                    member.server = answer.server;
                }
            }
            Err(failure) => {
                // A socket is counted once; it asks no more.
                member.is_lost = true;
                let how = failure.to_string();
                ledger.record(&member.name, &how);
                *ledger.lost.entry(how).or_default() += 1;
            }
        }
    }
}
