//! The take-over from kube-proxy without a broken connection (ADR 0031): what is left of kube-proxy, and what the data
//! path must know of it.
//!
//! Connections that kube-proxy's rules began belong to netfilter until they end. A take-over is under way while there
//! are such connections, or rules that may begin more.

mod anchor;
mod destination;
mod drain;
mod follow;
mod iptables;
mod reserve;
mod rules;
mod verb;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::time::Duration;

use lb_common::addr::{Ip, Port, Protocol};
use lb_common::config::{ServiceRanges, address};
use lb_common::flow::Tuple;
use lb_common::hash;
use lb_common::service::{Frontend, ServiceId};

pub use anchor::remove as remove_anchor;
pub use drain::{Drain, drain};
pub use follow::{Takeover, begin};
pub use rules::Rules;
pub use verb::{Error as VerbError, Options, takeover};

use self::destination::DestinationKind;
use crate::maps::{self, Maps};
pub use crate::netfilter::conntrack::Connection;
use crate::netfilter::conntrack::{self, Which};

/// An error of reading or changing rules or connections.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel or a tool failed.
    #[error("{0}")]
    System(&'static str, #[source] io::Error),
    #[error(transparent)]
    Maps(#[from] maps::Error),
    /// Without the iptables tools, chains of mode iptables cannot be removed.
    #[error(
        "iptables-nft-save, iptables-legacy-save and their ip6tables forms not found: run this where one \
         is installed, or remove the chains by hand (docs/takeover.md)"
    )]
    NoTool,
}

/// The rules and connections of kube-proxy that are left on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeProxyRemains {
    pub rules: Rules,
    /// Connections to frontends that netfilter translates.
    pub connections: Vec<Connection>,
    /// TCP connections that both ends have closed; netfilter remembers them for two minutes.
    pub ended: Vec<Connection>,
    /// Number of their tuples for which `INHERITED` has no room.
    pub left_out: usize,
}

impl KubeProxyRemains {
    /// Searches rules and connections. Only connections to `frontends` count, or all if it is `None`.
    pub fn look(frontends: Option<&MapFrontends<'_>>) -> Result<Self, Error> {
        // The rules come first, because they decide which connections to NodePorts count.
        let rules = Rules::find();
        let has_rules = !rules.is_empty();
        let is_meant = |connection: &Connection| {
            frontends.is_none_or(|frontends| frontends.counts(connection, has_rules))
        };
        let translated = connections(Which::Translated, is_meant)?.into_iter();
        let (ended, connections) = translated.partition(Connection::is_over);
        Ok(Self { rules, connections, ended, left_out: 0 })
    }

    /// Returns the connections by protocol and original tuple.
    fn tuples(&self) -> Tuples {
        self.connections.iter().map(|it| (it.protocol, it.original)).collect()
    }

    /// Reports whether netfilter has connections of kube-proxy, or may get some.
    pub fn is_under_way(&self) -> bool {
        !self.rules.is_empty() || !self.connections.is_empty()
    }

    /// Returns the hashes that the data path needs: of datagrams and associations that belong to netfilter, and of the
    /// tuples of answers.
    ///
    /// Without the former a datagram would get another backend; without the latter a flow might get a port that is in
    /// use. `next`: the time until the next check. An unanswered entry that expires before it is left out: the first
    /// datagram behind its end, as of a sender with a period of 30 s, would meet neither rules nor a flow.
    fn hashes(&self, next: Duration) -> Vec<u64> {
        // A TCP segment itself shows whether it begins a connection.
        let datagrams = self.connections.iter().filter(|it| it.protocol != Protocol::TCP);
        let datagrams = datagrams.filter(|it| it.is_answered() || !it.ends_within(next));
        let asked = datagrams.map(|it| hash::whole(&it.original, it.protocol));
        let answers = self.connections.iter().map(|it| hash::whole(&it.reply, it.protocol));
        asked.chain(answers).collect()
    }
}

impl fmt::Display for KubeProxyRemains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.connections.len();
        write!(
            f,
            "{count} connections still translated by netfilter; kube-proxy's rules: {}",
            self.rules
        )
    }
}

/// Deletes the conntrack entries that would keep kube-proxy's rules from packets that programs over these maps
/// translated.
pub fn clear_conntrack(maps: &Maps) -> Result<(), Error> {
    MapFrontends::of(maps)?.forget_untranslated(&BTreeSet::new())?;
    forget_ended(maps)
}

/// Deletes conntrack entries of TCP connections to backends that have ended.
///
/// netfilter tracks connections only where rules need it. So the port of such an entry may already belong to an open
/// connection of ours, whose segments would be invalid to netfilter; iptables mode drops those (contract 13).
fn forget_ended(maps: &Maps) -> Result<(), Error> {
    let rows = maps.backends()?;
    let backends: BTreeSet<(Ip, Port)> = rows.iter().map(|row| (row.ip, row.port)).collect();
    let is_meant = |it: &Connection| backends.contains(&(it.reply.source, it.reply.source_port));
    forget(&connections(Which::Over, is_meant)?)
}

/// Lists the connections of a kind that `is_meant` selects.
fn connections(
    which: Which,
    is_meant: impl Fn(&Connection) -> bool,
) -> Result<Vec<Connection>, Error> {
    let listed = conntrack::list(which, is_meant);
    listed.map_err(|error| Error::System("list connections", error))
}

/// Deletes the conntrack entries of these connections.
fn forget(connections: &[Connection]) -> Result<(), Error> {
    connections.iter().try_for_each(|connection| {
        let forgotten = conntrack::forget(connection);
        forgotten.map_err(|error| Error::System("delete a conntrack entry", error))
    })
}

/// Connections by protocol and original tuple.
type Tuples = BTreeSet<(Protocol, Tuple)>;

/// The frontends in the maps, and the addresses of this node: they decide whether a connection is to a Service.
#[derive(Debug)]
pub struct MapFrontends<'a> {
    maps: &'a Maps,
    services: ServiceRanges,
    own: BTreeSet<Ip>,
    /// Connections that counted before: their `NodePort` may have been deleted since.
    earlier: Tuples,
}

impl<'a> MapFrontends<'a> {
    /// Reads settings and addresses from the maps.
    pub fn of(maps: &'a Maps) -> Result<Self, Error> {
        let own = maps.addresses()?.into_iter();
        let own = own.filter(|(_, bits)| bits & address::NODE != 0).map(|(ip, _)| ip).collect();
        Ok(Self { maps, services: maps.settings()?.services, own, earlier: Tuples::new() })
    }

    /// Lets connections count that counted at an earlier search.
    fn after(self, earlier: Tuples) -> Self {
        Self { earlier, ..self }
    }

    /// Reports whether a connection that netfilter translates is kube-proxy's.
    fn counts(&self, connection: &Connection, has_rules: bool) -> bool {
        let kind = DestinationKind::of(&connection.original, &self.services, &self.own);
        let is_known =
            || has_rules || self.earlier.contains(&(connection.protocol, connection.original));
        kind.counts(|| self.service(connection).is_some(), is_known)
    }

    /// Reports whether a connection is to a frontend, or to a former one.
    fn has(&self, connection: &Connection) -> bool {
        let kind = DestinationKind::of(&connection.original, &self.services, &self.own);
        kind != DestinationKind::Elsewhere || self.service(connection).is_some()
    }

    /// Deletes conntrack entries of datagrams from this host to frontends, which our programs translated after
    /// netfilter.
    ///
    /// Otherwise the next datagram with the same tuple, even from another socket, would be sent to the frontend itself,
    /// whatever rules there are by then. netfilter takes the answer for the first packet if it has not seen the
    /// request: its rules were not there, or its entry was deleted in between.
    ///
    /// Entries of `live` flows stay: our programs serve their next datagram. A drain leaves out those that end soon.
    fn forget_untranslated(&self, live: &BTreeSet<(Protocol, Tuple)>) -> Result<(), Error> {
        let is_meant = |it: &Connection| {
            let asked = if self.has(it) {
                it.original
            } else if self.is_of_frontend(it) {
                it.reply
            } else {
                return false;
            };
            it.protocol != Protocol::TCP && !live.contains(&(it.protocol, asked))
        };
        forget(&connections(Which::Kept, is_meant)?)
    }

    /// Reports whether a frontend seems to have begun a connection.
    fn is_of_frontend(&self, connection: &Connection) -> bool {
        let (ip, port) = (connection.original.source, connection.original.source_port);
        self.services.contain(&ip) || self.service_of(ip, port, connection.protocol).is_some()
    }

    /// Returns the Service whose frontend a connection is to. Other proxies may have Services of their own.
    fn service(&self, connection: &Connection) -> Option<ServiceId> {
        let (ip, port) = (connection.original.destination, connection.original.destination_port);
        self.service_of(ip, port, connection.protocol)
    }

    fn service_of(&self, ip: Ip, port: Port, protocol: Protocol) -> Option<ServiceId> {
        let both = [Frontend::new(ip, port, protocol), Frontend::node_port(ip, port, protocol)];
        both.iter().find_map(|frontend| Some(self.maps.service(frontend).ok()??.id))
    }

    /// Returns the datagrams of UDP whose backend was removed from their Service, whatever other Services it has. They
    /// must begin a new flow, so netfilter must forget them. Connections and associations go on (contract 5).
    fn stale<'c>(&self, connections: &'c [Connection]) -> Result<Vec<&'c Connection>, Error> {
        let datagrams = || connections.iter().filter(|it| it.protocol == Protocol::UDP);
        // The map of backends is read only where it matters.
        if datagrams().next().is_none() {
            return Ok(Vec::new());
        }
        let rows = self.maps.backends()?;
        let serving = rows.iter().filter(|row| row.service != 0);
        let serving: BTreeSet<(ServiceId, Ip, Port)> =
            serving.map(|row| (row.service, row.ip, row.port)).collect();
        let is_removed = |connection: &&Connection| {
            let Tuple { source, source_port, .. } = connection.reply;
            let service = self.service(connection);
            service.is_some_and(|service| !serving.contains(&(service, source, source_port)))
        };
        Ok(datagrams().filter(is_removed).collect())
    }
}
