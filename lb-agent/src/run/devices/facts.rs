//! The facts about this node beside its interfaces: from the configuration, the Node object and an earlier run.

use std::net::IpAddr;
use std::sync::Arc;

use lb_common::addr::Ip;
use lb_common::config::{NodeSettings, Prefix};

use crate::config::{Config, Masquerade, ShortCuts};
use crate::node::{Identity, Primary, settings};
use crate::plan::Family;
use crate::run::error::Error;
use crate::snapshot::NodeSpec;
use crate::syscall::netns_cookie;

/// The facts by which roles, addresses and settings are decided.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) config: Arc<Config>,
    pub(super) identity: Identity,
    pub(super) netns_cookie: u64,
    /// Sources that count as pods of this node; an earlier run's until the Node object is known.
    pub(super) local: [Prefix; 2],
    /// Where pods of the cluster have their addresses; an earlier run's until the Node object is known.
    pub(super) pods: [Prefix; 2],
    /// [`NodeSettings::secret`]. It is as old as the maps, so that all fragments of a datagram are treated alike.
    pub(super) secret: u32,
}

impl Facts {
    /// Until the Node object is known, the node is what an earlier run took it for.
    pub(super) fn after(before: &NodeSettings, config: Arc<Config>) -> Result<Self, Error> {
        let primary = Primary { v4: address(before.address4), v6: address(before.address6) };
        Ok(Self {
            identity: Identity::of(&config, primary),
            netns_cookie: netns_cookie()?,
            local: before.local,
            pods: before.pods,
            secret: if before.secret == 0 { settings::secret() } else { before.secret },
            config,
        })
    }

    /// The Node object is this now, and its addresses that count are these.
    pub(super) fn learn(&mut self, node: &NodeSpec, (v4, v6): (Option<IpAddr>, Option<IpAddr>)) {
        self.identity.learn(&self.config, node, Primary { v4, v6 });
        self.local = self.config.local(Some(node));
        self.pods = self.config.pods(Some(node));
    }

    /// Whether packets of known flows bypass the stack. Packets that are masqueraded at pods' devices do not.
    pub(super) fn has_short_cuts(&self) -> bool {
        self.config.short_cuts.value == ShortCuts::On
            && self.config.masquerade.value != Masquerade::KubeProxy
    }

    /// In which families `NodePorts` are served on all addresses of the node.
    pub(super) fn are_all_served(&self) -> [bool; 2] {
        let Primary { v4, v6 } = self.identity.primary;
        let all = |family, primary| self.identity.node_ports.is_all(family, primary);
        [all(Family::V4, v4), all(Family::V6, v6)]
    }
}

/// An address of the tables, unless it is none.
pub(in crate::run) fn address(ip: Ip) -> Option<IpAddr> {
    (ip != Ip::UNSPECIFIED).then(|| IpAddr::from(ip))
}
