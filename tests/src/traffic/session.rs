//! The process's side of [`super::peer::Peer`]: it reads orders line by line and executes them.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::time::Duration;

use lb_agent::syscall::raise_open_files;
use serde::{Deserialize, Serialize};

use super::both::ask_both;
use super::conversation::{Conversation, once, open};
use super::load::{Stream, Tally};
use super::rounds::{Ledger, Rounds};
use super::server::Server;
use super::survey::{Endings, Inquiry, survey};
use super::{Answer, Ask, Failure, Protocol};

/// The orders to a peer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Listen, and answer with this name.
    Serve {
        name: String,
        protocol: Protocol,
        at: SocketAddr,
    },
    /// Close a listener.
    StopServing {
        protocol: Protocol,
        at: SocketAddr,
    },
    /// Ask once, through a new socket.
    Ask(Ask),
    /// Ask many times, each through a new socket.
    AskMany {
        ask: Ask,
        times: u32,
    },
    /// Ask many questions at once.
    Survey(Vec<Inquiry>),
    /// Ask two servers many times through one unconnected UDP socket, with both questions under way at once.
    AskBoth {
        to: [SocketAddr; 2],
        times: u32,
    },
    /// Open a socket for many questions.
    Open {
        id: u64,
        ask: Ask,
    },
    /// Ask through an open socket.
    AskOn {
        id: u64,
        ask: Ask,
    },
    /// Close an open socket.
    Close {
        id: u64,
    },
    /// Start to ask continuously.
    StartLoad {
        id: u64,
        ask: Ask,
        kept: bool,
        pause_milliseconds: u64,
    },
    /// Report the account of continuous questions.
    LoadSoFar {
        id: u64,
    },
    StopLoad {
        id: u64,
    },
    /// Open sockets, and start to ask through them round after round.
    StartRounds {
        id: u64,
        ask: Ask,
        count: u64,
    },
    /// Report the account of questions in rounds.
    RoundsSoFar {
        id: u64,
    },
    /// Close the sockets of questions in rounds.
    StopRounds {
        id: u64,
    },
}

/// The report on an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The result of an order without data.
    Done(Result<(), Failure>),
    /// The result of one question.
    Asked(Result<Answer, Failure>),
    /// The account of many questions.
    Tallied(Tally),
    /// The outcomes of a survey.
    Surveyed(Vec<Endings>),
    /// The account of questions in rounds.
    Counted(Ledger),
}

#[derive(Default)]
struct Session {
    servers: BTreeMap<(Protocol, SocketAddr), Server>,
    conversations: BTreeMap<u64, Conversation>,
    loads: BTreeMap<u64, Stream>,
    rounds: BTreeMap<u64, Rounds>,
}

/// Executes orders from `input` until it ends.
pub fn run(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut session = Session::default();
    // One process may hold thousands of sockets. If the limit cannot be raised, as many as fit are enough.
    let _raised: io::Result<(u64, u64)> = raise_open_files();
    for line in input.lines() {
        let report = session.follow(serde_json::from_str(&line?)?);
        serde_json::to_writer(&mut output, &report)?;
        writeln!(output)?;
        output.flush()?;
    }
    Ok(())
}

impl Session {
    fn follow(&mut self, order: Order) -> Report {
        match order {
            Order::Serve { name, protocol, at } => {
                Report::Done(self.serve(&name, protocol, at).map_err(Into::into))
            }
            Order::StopServing { protocol, at } => {
                drop(self.servers.remove(&(protocol, at)));
                Report::Done(Ok(()))
            }
            Order::Ask(ask) => Report::Asked(once(&ask)),
            Order::AskMany { ask, times } => {
                let mut tally = Tally::default();
                (0..times).for_each(|_| tally.count(once(&ask)));
                Report::Tallied(tally)
            }
            Order::Survey(inquiries) => Report::Surveyed(survey(&inquiries)),
            Order::AskBoth { to, times } => Report::Tallied(ask_both(to, times)),
            Order::Open { id, ask } => Report::Done(self.open(id, &ask)),
            Order::AskOn { id, ask } => Report::Asked(self.ask_on(id, &ask)),
            Order::Close { id } => {
                drop(self.conversations.remove(&id));
                Report::Done(Ok(()))
            }
            Order::StartLoad { id, ask, kept, pause_milliseconds } => {
                let pause = Duration::from_millis(pause_milliseconds);
                drop(self.loads.insert(id, Stream::start(ask, kept, pause)));
                Report::Done(Ok(()))
            }
            Order::LoadSoFar { id } => {
                Report::Tallied(self.loads.get(&id).map(Stream::so_far).unwrap_or_default())
            }
            Order::StopLoad { id } => {
                Report::Tallied(self.loads.remove(&id).map(Stream::finish).unwrap_or_default())
            }
            Order::StartRounds { id, ask, count } => Report::Done(
                Rounds::start(ask, count).map(|rounds| drop(self.rounds.insert(id, rounds))),
            ),
            Order::RoundsSoFar { id } => {
                Report::Counted(self.rounds.get(&id).map(Rounds::so_far).unwrap_or_default())
            }
            Order::StopRounds { id } => {
                drop(self.rounds.remove(&id));
                Report::Done(Ok(()))
            }
        }
    }

    fn serve(&mut self, name: &str, protocol: Protocol, at: SocketAddr) -> io::Result<()> {
        drop(self.servers.remove(&(protocol, at)));
        let server = Server::start(name, protocol, at)?;
        drop(self.servers.insert((protocol, at), server));
        Ok(())
    }

    fn open(&mut self, id: u64, ask: &Ask) -> Result<(), Failure> {
        let conversation = open(ask)?;
        drop(self.conversations.insert(id, conversation));
        Ok(())
    }

    fn ask_on(&mut self, id: u64, ask: &Ask) -> Result<Answer, Failure> {
        let missing = || Failure::Other(format!("socket {id} is not open"));
        self.conversations.get_mut(&id).ok_or_else(missing)?.ask(ask)
    }
}
