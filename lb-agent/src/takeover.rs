//! Taking over from kube-proxy without a broken connection (ADR
//! 0031): what is there of it, and what the data path must know.
//!
//! Connections that kube-proxy's rules began are netfilter's until they end.
//! While there are any, or rules that may begin more, a take-over is under way.

mod anchor;
mod drain;
mod follow;
mod iptables;
mod reserve;
mod rules;
mod verb;

use std::collections::BTreeSet;
use std::fmt;
use std::io;

use lb_common::addr::{Ip, Port, Protocol};
use lb_common::config::{Settings, address};
use lb_common::flow::Tuple;
use lb_common::hash;
use lb_common::service::{Frontend, ServiceId};

pub use anchor::remove as remove_anchor;
pub use drain::{Drain, drain};
pub use follow::{Takeover, begin};
pub use rules::Rules;
pub use verb::{Error as VerbError, Options, takeover};

use crate::maps::{self, Maps};
pub use crate::netfilter::conntrack::Connection;
use crate::netfilter::conntrack::{self, Which};

/// Why rules or connections were not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel, or a tool.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// Nothing here can remove the rules of the mode `iptables`.
    #[error(
        "iptables-save and iptables-restore not found: run this where they are installed, or remove \
         the chains by hand (docs/install.md)"
    )]
    NoTool,
}

/// The traces of kube-proxy on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub rules: Rules,
    /// Connections to frontends that netfilter translates.
    pub connections: Vec<Connection>,
    /// Those of TCP that both ends have closed: netfilter remembers them for two minutes.
    pub ended: Vec<Connection>,
    /// Tuples of theirs that `INHERITED` has no room for.
    pub left_out: usize,
}

impl Found {
    /// Looks. `frontends`: which connections count; nothing counts all of them.
    pub fn look(frontends: Option<&Frontends<'_>>) -> Result<Self, Error> {
        let is_meant =
            |connection: &Connection| frontends.is_none_or(|frontends| frontends.has(connection));
        let translated = connections(Which::Translated, is_meant)?.into_iter();
        let (ended, connections) = translated.partition(Connection::is_over);
        Ok(Self { rules: Rules::find(), connections, ended, left_out: 0 })
    }

    /// Whether connections are netfilter's, or may become so.
    pub fn is_under_way(&self) -> bool {
        !self.rules.is_empty() || !self.connections.is_empty()
    }

    /// The hashes that the data path needs: of datagrams that are netfilter's, then of the tuples of answers. Without
    /// the former a datagram gets another backend, without the latter a flow perhaps a port that is taken.
    fn hashes(&self) -> Vec<u64> {
        // A TCP segment shows by itself whether it begins a connection.
        let datagrams = self.connections.iter().filter(|it| it.protocol != Protocol::TCP);
        let asked = datagrams.map(|it| hash::whole(&it.original, it.protocol));
        let answers = self.connections.iter().map(|it| hash::whole(&it.reply, it.protocol));
        asked.chain(answers).collect()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.connections.len();
        write!(
            f,
            "{count} connections still translated by netfilter; kube-proxy's rules: {}",
            self.rules
        )
    }
}

/// Makes netfilter forget what stands between kube-proxy's rules and packets that programs over these maps translated.
pub fn clear_conntrack(maps: &Maps) -> Result<(), Error> {
    Frontends::of(maps)?.forget_untranslated(&BTreeSet::new())?;
    forget_ended(maps)
}

/// Makes netfilter forget TCP connections to backends that have ended. It follows connections only where somebody's
/// rules want that: a port of such an entry may be that of an open connection of ours by now. Its segments would be
/// invalid to netfilter, and iptables mode drops those.
fn forget_ended(maps: &Maps) -> Result<(), Error> {
    let rows = maps.backends()?;
    let backends: BTreeSet<(Ip, Port)> = rows.iter().map(|row| (row.ip, row.port)).collect();
    let is_meant = |it: &Connection| backends.contains(&(it.reply.source, it.reply.source_port));
    forget(&connections(Which::Over, is_meant)?)
}

/// Lists the connections of a kind that are meant.
fn connections(
    which: Which,
    is_meant: impl Fn(&Connection) -> bool,
) -> Result<Vec<Connection>, Error> {
    let listed = conntrack::list(which, is_meant);
    listed.map_err(|error| Error::System("list connections", error))
}

/// Makes netfilter forget these connections.
fn forget(connections: &[Connection]) -> Result<(), Error> {
    connections.iter().try_for_each(|connection| {
        let forgotten = conntrack::forget(connection);
        forgotten.map_err(|error| Error::System("delete a conntrack entry", error))
    })
}

/// The facts that tell whether a connection is to a Service.
#[derive(Debug)]
pub struct Frontends<'a> {
    maps: &'a Maps,
    settings: Settings,
    own: BTreeSet<Ip>,
}

impl<'a> Frontends<'a> {
    /// As the maps know them.
    pub fn of(maps: &'a Maps) -> Result<Self, Error> {
        let own = maps.addresses()?.into_iter();
        let own = own.filter(|(_, bits)| bits & address::NODE != 0).map(|(ip, _)| ip).collect();
        Ok(Self { maps, settings: maps.settings()?, own })
    }

    /// Whether a connection was meant for a frontend, or for one that was: an address of a service range, a port of the
    /// `NodePorts` on this node.
    fn has(&self, connection: &Connection) -> bool {
        let (ip, port) = (connection.original.destination, connection.original.destination_port);
        let is_node_port = (self.settings.node_port_low..=self.settings.node_port_high)
            .contains(&port)
            && (self.own.contains(&ip) || ip.is_loopback());
        is_node_port
            || self.settings.ranges.iter().any(|range| range.contains(&ip))
            || self.service(connection).is_some()
    }

    /// Makes netfilter forget datagrams of this host to frontends that our programs translated behind it. The next
    /// datagram of the same tuple, also that of another socket, would be sent to the frontend itself, whatever rules
    /// there are by then. Netfilter takes the answer for the beginning where it did not see the question: its rules
    /// were not there, or it was made to forget in between.
    ///
    /// Those of `known` flows stay: our programs serve the next datagram.
    fn forget_untranslated(&self, known: &BTreeSet<(Protocol, Tuple)>) -> Result<(), Error> {
        let is_meant = |it: &Connection| {
            let asked = if self.has(it) {
                it.original
            } else if self.is_of_frontend(it) {
                it.reply
            } else {
                return false;
            };
            it.protocol != Protocol::TCP && !known.contains(&(it.protocol, asked))
        };
        forget(&connections(Which::Kept, is_meant)?)
    }

    /// Whether a frontend seems to have begun a connection.
    fn is_of_frontend(&self, connection: &Connection) -> bool {
        let (ip, port) = (connection.original.source, connection.original.source_port);
        self.settings.ranges.iter().any(|range| range.contains(&ip))
            || self.service_of(ip, port, connection.protocol).is_some()
    }

    /// The Service whose frontend a connection was meant for: other proxies may have Services of their own.
    fn service(&self, connection: &Connection) -> Option<ServiceId> {
        let (ip, port) = (connection.original.destination, connection.original.destination_port);
        self.service_of(ip, port, connection.protocol)
    }

    fn service_of(&self, ip: Ip, port: Port, protocol: Protocol) -> Option<ServiceId> {
        let both = [Frontend::new(ip, port, protocol), Frontend::node_port(ip, port, protocol)];
        both.iter().find_map(|frontend| Some(self.maps.service(frontend).ok()??.id))
    }

    /// Datagrams whose backend left their Service, whatever other Services it has: they are to begin a flow, and
    /// netfilter is to forget them.
    fn stale<'c>(&self, connections: &'c [Connection]) -> Result<Vec<&'c Connection>, Error> {
        let datagrams = || connections.iter().filter(|it| it.protocol != Protocol::TCP);
        if datagrams().next().is_none() {
            return Ok(Vec::new());
        }
        let rows = self.maps.backends()?;
        let serving = rows.iter().filter(|row| row.service != 0);
        let serving: BTreeSet<(ServiceId, Ip, Port)> =
            serving.map(|row| (row.service, row.ip, row.port)).collect();
        let has_left = |connection: &&Connection| {
            let Tuple { source, source_port, .. } = connection.reply;
            let service = self.service(connection);
            service.is_some_and(|service| !serving.contains(&(service, source, source_port)))
        };
        Ok(datagrams().filter(has_left).collect())
    }
}
