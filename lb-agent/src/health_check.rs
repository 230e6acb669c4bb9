//! The listeners on `healthCheckNodePort`, one per Service (contract 6.1), by which load balancers find nodes with
//! endpoints.
//!
//! This module decides nothing: the caller says what each Service wants and where to listen. A port that is taken
//! affects only its own Service; the failure is reported, and listening is retried.

mod answer;
mod listener;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tokio::sync::watch;
use tracing::{info, warn};

use self::answer::{Answerer, Endpoints};
use self::listener::{Listener, ListenerKind};
use crate::health::Health;
use crate::http_server::connections::Connections;
use crate::plan::ServiceName;
use crate::translate::{HealthCheck, LocalReady};

/// The addresses of a family to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// All addresses, future ones included.
    Everywhere,
    On(BTreeSet<IpAddr>),
}

impl Default for Where {
    fn default() -> Self {
        Self::On(BTreeSet::new())
    }
}

/// The addresses of both families to listen on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenAddresses {
    pub v4: Where,
    pub v6: Where,
}

impl ListenAddresses {
    fn sockets(&self, port: u16) -> Sockets {
        // One dual-stack socket is enough, as in Go; without IPv6 in the kernel, `bind` takes an IPv4 one.
        if (&self.v4, &self.v6) == (&Where::Everywhere, &Where::Everywhere) {
            let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
            return [(any, ListenerKind::BothFamilies)].into();
        }
        let of = |place: &Where, any: IpAddr| match place {
            Where::Everywhere => [any].into(),
            Where::On(list) => list.clone(),
        };
        let mut all = of(&self.v4, Ipv4Addr::UNSPECIFIED.into());
        all.extend(of(&self.v6, Ipv6Addr::UNSPECIFIED.into()));
        all.into_iter().map(|ip| (SocketAddr::new(ip, port), ListenerKind::OneFamily)).collect()
    }
}

/// An address at which no health check is answered. It is reported once, until its reason changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerFailure {
    /// The Service whose health check is not answered.
    pub service: ServiceName,
    pub address: SocketAddr,
    pub reason: String,
}

/// All listeners. Use it inside a tokio runtime; dropping it closes them.
#[derive(Debug)]
pub struct HealthChecks {
    services: BTreeMap<ServiceName, CheckedService>,
    addresses: ListenAddresses,
    health: Health,
    connections: Arc<Connections>,
    failures: Vec<ListenerFailure>,
}

/// The sockets that are wanted, with the kind of their listeners.
type Sockets = BTreeMap<SocketAddr, ListenerKind>;

/// A Service with a health check, and its listeners.
#[derive(Debug)]
struct CheckedService {
    port: u16,
    answerer: Arc<Answerer>,
    listeners: BTreeMap<SocketAddr, Listener>,
    failing: BTreeMap<SocketAddr, io::Error>,
    /// Its end also ends the connections, as kube-proxy does (`service_health.go`, `closeAll`): a load balancer that
    /// keeps one open would go on to be told that the Service has endpoints here.
    _open: watch::Sender<()>,
}

impl HealthChecks {
    /// Starts without listeners. Their answers follow `health`, even while the agent's loop hangs.
    pub fn new(health: Health) -> Self {
        Self::with(health, Connections::default())
    }

    fn with(health: Health, connections: Connections) -> Self {
        Self {
            services: BTreeMap::new(),
            addresses: ListenAddresses::default(),
            health,
            connections: Arc::new(connections),
            failures: Vec::new(),
        }
    }

    /// Closes the listeners and connections of a Service that gives up its port, which another Service may want.
    pub fn give_up(&mut self, service: &ServiceName, wanted: Option<HealthCheck>) {
        let port = wanted.map(|wanted| wanted.port);
        if self.services.get(service).is_some_and(|known| Some(known.port) != port) {
            drop(self.services.remove(service));
        }
    }

    /// Returns the number that probes over IPv4 get of a Service with a listener.
    #[cfg(test)]
    pub fn local_ready(&self, service: &ServiceName) -> Option<u32> {
        Some(self.services.get(service)?.answerer.endpoints.of(crate::plan::Family::V4))
    }

    /// Reports whether a Service has a listener, or one that failed.
    pub fn has(&self, service: &ServiceName) -> bool {
        self.services.contains_key(service)
    }

    /// Lowers the numbers of endpoints that a Service has a listener for; none rises.
    pub fn lower(&self, service: &ServiceName, local_ready: LocalReady) {
        if let Some(known) = self.services.get(service) {
            known.answerer.endpoints.lower(local_ready);
        }
    }

    /// Sets the listener of a Service; `None` removes it.
    pub fn set(&mut self, service: &ServiceName, wanted: Option<HealthCheck>) {
        // The old listeners close first, so that a Service never answers on two ports.
        self.give_up(service, wanted);
        let Some(wanted) = wanted else { return };
        if let Some(known) = self.services.get(service) {
            // The usual change: only the number differs, and open sockets stay.
            known.answerer.endpoints.set(wanted.local_ready);
            return;
        }
        let (open, is_open) = watch::channel(());
        let answerer = Answerer {
            service: service.clone(),
            endpoints: Endpoints::default(),
            health: self.health.clone(),
            is_open,
        };
        answerer.endpoints.set(wanted.local_ready);
        let new = CheckedService {
            port: wanted.port,
            answerer: Arc::new(answerer),
            _open: open,
            listeners: BTreeMap::new(),
            failing: BTreeMap::new(),
        };
        drop(self.services.insert(service.clone(), new));
        self.listen(service);
    }

    /// Sets the addresses to listen on. Listeners on addresses that stay are left alone.
    pub fn set_addresses(&mut self, addresses: ListenAddresses) {
        if self.addresses != addresses {
            self.addresses = addresses;
            let all: Vec<ServiceName> = self.services.keys().cloned().collect();
            for service in &all {
                self.listen(service);
            }
        }
    }

    /// Retries the listeners that failed.
    pub fn retry(&mut self) {
        let failing = self.services.iter().filter(|(_, service)| !service.failing.is_empty());
        let failing: Vec<ServiceName> = failing.map(|(name, _)| name.clone()).collect();
        for service in &failing {
            self.listen(service);
        }
    }

    /// Returns the listeners that failed since the last call, each once until its reason changes.
    pub fn failures(&mut self) -> Vec<ListenerFailure> {
        std::mem::take(&mut self.failures)
    }

    /// Returns the problem for operators: one of the listeners that are failing, and the number of others.
    pub fn problem(&self) -> Option<String> {
        let mut failing = self.services.iter().flat_map(|(name, service)| {
            service.failing.iter().map(move |(address, error)| (name, address, error))
        });
        let (service, address, error) = failing.next()?;
        let others = match failing.count() {
            0 => String::new(),
            others => format!("; {others} more listeners fail"),
        };
        Some(format!(
            "the health check of Service {service} is not answered on {address}: {error}; a load balancer that probes \
             this address sends nothing to this node{others}"
        ))
    }

    fn listen(&mut self, name: &ServiceName) {
        let Some(service) = self.services.get_mut(name) else { return };
        let wanted = self.addresses.sockets(service.port);
        // Old sockets close first: a new one may need the same port on a wildcard address.
        service.listeners.retain(|address, it| wanted.get(address) == Some(&it.kind));
        service.failing.retain(|address, _| wanted.contains_key(address));
        let (v4, v6): (Sockets, Sockets) =
            wanted.into_iter().partition(|(address, _)| address.is_ipv4());
        for sockets in [v4, v6] {
            service.open(&sockets, &self.connections, |address, error| {
                // One message per failure, as this is retried for ever.
                warn!(service = %name, %address, %error, "health check listener could not bind; retrying");
                let reason = error.to_string();
                self.failures.push(ListenerFailure { service: name.clone(), address, reason });
            });
        }
    }
}

impl CheckedService {
    /// Opens the listeners of a family that do not exist yet. If there is none and one cannot be opened, none stays: a
    /// node that answers at some of its addresses only is no target for load balancers (contract 6.1). Listeners that
    /// have answered stay, whatever happens to an address that is new.
    fn open(
        &mut self,
        sockets: &Sockets,
        connections: &Arc<Connections>,
        mut fails: impl FnMut(SocketAddr, &io::Error),
    ) {
        let missing = sockets.iter().filter(|(address, _)| !self.listeners.contains_key(address));
        // The addresses that failed last come first, so that a retry does not open the others for a moment.
        let (failed, others): (Vec<_>, Vec<_>) =
            missing.partition(|(address, _)| self.failing.contains_key(address));
        let is_partial = failed.len() + others.len() < sockets.len();
        for (&address, &kind) in failed.into_iter().chain(others) {
            let answerer = Arc::clone(&self.answerer);
            match Listener::open(address, kind, answerer, Arc::clone(connections)) {
                Ok(listener) => {
                    if self.failing.remove(&address).is_some() {
                        info!(service = %self.answerer.service, %address, "health check listener is bound again");
                    }
                    drop(self.listeners.insert(address, listener));
                }
                // A kernel without IPv6 has no address of that family to be probed at.
                Err(error) if listener::lacks_family(&error) => {}
                Err(error) => {
                    let earlier = self.failing.get(&address).map(io::Error::kind);
                    if earlier != Some(error.kind()) {
                        fails(address, &error);
                    }
                    drop(self.failing.insert(address, error));
                    if !is_partial {
                        self.listeners.retain(|address, _| !sockets.contains_key(address));
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
