//! Records for the data path which connections of this node are open when their port becomes one of a frontend: packets
//! that arrive on them are answers, not requests to the Service (ADR 0035). It records also which TCP connections to an
//! address outside are open when that address becomes an external IP or one of a load balancer.
//!
//! The program at egress always records packets that leave from the usual range of `NodePorts`, and from ports and
//! addresses of frontends. The data path looks up most sockets of the node by itself. It finds no socket that is bound
//! to another interface than that of the packet: a VRF, or a VLAN over the card.
//!
//! Some connections are missing in this record: those that sent nothing since the programs were attached, those from a
//! port without a frontend, and TCP connections during a take-over, because a segment does not show whether netfilter
//! translates it.

use std::collections::BTreeSet;
use std::sync::Arc;

use lb_common::addr::{Ip, Protocol};
use lb_common::config::{NodeSettings, Settings, USUAL_NODE_PORTS};
use lb_common::flow::{FlowKey, Side};
use lb_common::hash;
use lb_common::service::{Flags, Frontend, Service};
use tracing::{debug, warn};

use crate::maps::Maps;
use crate::node::open;
use crate::reconcile::Op;
use crate::syscall::monotonic;

/// The frontends for which open connections were searched.
#[derive(Debug)]
pub(super) struct OpenConnections {
    maps: Arc<Maps>,
    known: BTreeSet<Frontend>,
    /// Whether connections from [`USUAL_NODE_PORTS`] and [`NodeSettings::is_shared_port`] were searched. Egress records
    /// later ones at any time.
    has_begun: bool,
    /// Whether the maps had frontends of an earlier run; `None` until they are read.
    has_earlier: Option<bool>,
    /// New frontends at addresses outside, until they are in the maps.
    outside: BTreeSet<Frontend>,
    /// Whether the settings keep egress from recording some connections.
    is_held: bool,
}

impl OpenConnections {
    pub(super) fn new(maps: Arc<Maps>) -> Self {
        let is_held = |settings: Settings| settings.has(Settings::TAKE_OVER | Settings::DRAIN);
        // An earlier run may have left these settings.
        let is_held = maps.settings().is_ok_and(is_held);
        Self {
            maps,
            known: BTreeSet::new(),
            has_begun: false,
            has_earlier: None,
            outside: BTreeSet::new(),
            is_held,
        }
    }

    /// Takes in whether the settings hold egress back. Call it before they are written.
    ///
    /// When a take-over ends, the answers to connections that began meanwhile would otherwise be treated as requests.
    pub(super) fn hold(&mut self, is_held: bool) {
        if std::mem::replace(&mut self.is_held, is_held) && !is_held {
            self.look(&self.known, true);
        }
    }

    /// Searches connections for the frontends that operations add. Call it before the operations are written, and
    /// [`OpenConnections::record_again`] afterwards. `is_programmed`: the Services of the initial sync are in the maps.
    pub(super) fn record(&mut self, ops: &[Op], is_programmed: bool, is_own: impl Fn(&Ip) -> bool) {
        let is_here = |frontend: &Frontend, service: &Service| {
            let flags = service.flags;
            flags.has(Flags::EXTERNAL) && (flags.has(Flags::NODE_PORT) || is_own(&frontend.ip))
        };
        let mut new = BTreeSet::new();
        if self.has_earlier.is_none() {
            let written = self.written();
            self.has_earlier = Some(!written.is_empty());
            self.known.extend(written.iter().map(|(frontend, _)| *frontend));
            // The layout of that run may have recorded no connections.
            let here = written.into_iter().filter(|(frontend, service)| is_here(frontend, service));
            new.extend(here.map(|(frontend, _)| frontend));
        }
        // At a first start, connections to the frontends of others belong to the proxy before, or to an agent whose
        // maps were lost: a segment without a flow goes to the backend that it had.
        let is_first = !is_programmed && self.has_earlier == Some(false);
        for op in ops {
            if let Op::PutService { frontend, service } = op
                && service.flags.has(Flags::EXTERNAL)
                && !service.flags.has(Flags::DRAINING)
            {
                // The first search covered the usual NodePorts, in use or not.
                let is_recorded = self.has_begun && USUAL_NODE_PORTS.contains(&frontend.port.get());
                let is_node_port = service.flags.has(Flags::NODE_PORT);
                if is_recorded && is_node_port || !self.known.insert(*frontend) {
                    continue;
                }
                if !is_node_port && !is_first && frontend.protocol == Protocol::TCP {
                    self.outside.insert(*frontend);
                }
                if !is_recorded && is_here(frontend, service) {
                    new.insert(*frontend);
                }
            // A frontend that drains lets new connections pass to the owner of its address.
            } else if let Op::RemoveService { frontend } | Op::PutService { frontend, .. } = op {
                self.known.remove(frontend);
            }
        }
        self.look_towards();
        if !new.is_empty() {
            let is_first = !std::mem::replace(&mut self.has_begun, true);
            self.look(&new, is_first);
        }
    }

    /// Returns the external frontends of an earlier run.
    fn written(&self) -> Vec<(Frontend, Service)> {
        let mut services = self.maps.services().unwrap_or_else(|error| {
            warn!(error = %crate::chain(&error), "frontends of an earlier run could not be listed");
            Vec::new()
        });
        let stands = |flags: Flags| flags.has(Flags::EXTERNAL) && !flags.has(Flags::DRAINING);
        services.retain(|(_, service)| stands(service.flags));
        services
    }

    /// Records connections that began after the first search, and before the frontends were in the maps.
    pub(super) fn record_again(&mut self) {
        self.look_towards();
        self.outside.clear();
    }

    /// Searches TCP connections to the addresses of new frontends, except for those that the data path translates: a
    /// Service may be deleted and created again. During a take-over those that netfilter translates are kube-proxy's.
    fn look_towards(&self) {
        let new = &self.outside;
        if new.is_empty() {
            return;
        }
        let mut found =
            open::towards(|to| new.contains(to), !self.is_held).unwrap_or_else(|error| {
                warn!(%error, "open sockets of this node could not be listed");
                Vec::new()
            });
        let flows = self.maps.flows();
        found.retain(|tuple| {
            // Flows of host processes are those of egress.
            let has_flow = |side| {
                let flow = flows.get(&FlowKey::new(*tuple, Protocol::TCP, side));
                flow.is_ok_and(|flow| flow.is_some_and(|flow| flow.is_forward()))
            };
            !has_flow(Side::INGRESS) && !has_flow(Side::EGRESS)
        });
        let hashes: Vec<u64> =
            found.iter().map(|tuple| hash::whole(tuple, Protocol::TCP)).collect();
        self.write(&hashes, new.len());
    }

    fn look(&self, new: &BTreeSet<Frontend>, is_first: bool) {
        let is_meant = |own: &Frontend| {
            is_first
                && (USUAL_NODE_PORTS.contains(&own.port.get())
                    || NodeSettings::is_shared_port(own.port))
                || new.contains(&Frontend::node_port(own.ip, own.port, own.protocol))
                || new.contains(own)
        };
        let mut found = open::sockets(is_meant).unwrap_or_else(|error| {
            warn!(%error, "open sockets of this node could not be listed");
            Vec::new()
        });
        match open::followed(is_meant) {
            Ok(followed) => found.extend(followed),
            // Without conntrack no connection is masqueraded.
            Err(error) => debug!(%error, "open connections of netfilter could not be listed"),
        }
        let hashes: Vec<u64> =
            found.iter().map(|(protocol, tuple)| hash::whole(tuple, *protocol)).collect();
        self.write(&hashes, new.len());
    }

    fn write(&self, hashes: &[u64], frontends: usize) {
        match self.maps.record_own_answers(hashes, monotonic()) {
            Ok(()) => debug!(frontends, connections = hashes.len(), "open connections recorded"),
            Err(error) => {
                let error = crate::chain(&error);
                warn!(error, "packets of open connections may be treated as requests to a Service");
            }
        }
    }
}
