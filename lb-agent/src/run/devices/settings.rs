//! The settings that follow from the node and the configuration.

use std::net::IpAddr;

use lb_common::addr::{Ip, Port};
use lb_common::config::{NodeSettings, Settings};

use super::{Devices, addresses};
use crate::node::settings::{HAIRPIN4, HAIRPIN6, ports_of_translated_sources};
use crate::reconcile::wire;

impl Devices {
    /// The settings as the node is now. Every field is named here, so that none is forgotten.
    pub(in crate::run) fn settings(&self) -> NodeSettings {
        let bypasses = if self.has_short_cuts() { Settings::BYPASSES } else { 0 };
        let accelerated = if self.accelerator.may_be_on() { Settings::ACCELERATED } else { 0 };
        let ports = ports_of_translated_sources();
        let primary = self.identity.primary;
        let address = |ip: Option<IpAddr>| ip.map_or(Ip::UNSPECIFIED, wire);
        let mut own = self.own;
        // An address is in the filter before programs come that must know which answers are to this node.
        if let Some(view) = &self.view {
            for ip in addresses(view, &self.identity).keys() {
                own.add(ip);
            }
        }
        NodeSettings {
            netns_cookie: self.netns_cookie,
            flags: self.config.flags() | bypasses | accelerated,
            socket_mode: self.config.socket_mode(),
            source_port_low: Port::new(*ports.start()),
            source_port_high: Port::new(*ports.end()),
            secret: self.secret,
            hairpin4: HAIRPIN4,
            hairpin6: HAIRPIN6,
            own,
            lifetimes: self.config.lifetimes(),
            local: self.local,
            address4: address(primary.v4),
            address6: address(primary.v6),
            pods: self.pods,
            pad: 0,
        }
    }
}
