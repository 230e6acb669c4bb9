//! The settings that follow from the node and the configuration.

use std::net::IpAddr;

use lb_common::addr::{Ip, Port};
use lb_common::config::{NodeSettings, Settings};

use super::Devices;
use super::addresses::may_be_source;
use crate::config::Masquerade;
use crate::node::addresses;
use crate::node::settings::{HAIRPIN4, HAIRPIN6, ports_of_translated_sources};

impl Devices {
    /// Returns the settings for the current state of the node. Every field is named here, so that none is forgotten.
    pub(in crate::run) fn settings(&mut self) -> NodeSettings {
        let ports = ports_of_translated_sources();
        let answer_ports = self.facts.widen(&ports);
        let facts = &self.facts;
        let bypasses = if facts.config.has_bypass() { Settings::BYPASSES } else { 0 };
        let accelerated = if self.acceleration.may_be_on() { Settings::ACCELERATED } else { 0 };
        // Flows keep the source that their backend has seen when the configuration changes to `edge`.
        let masqueraded =
            facts.had_masqueraded_pods || facts.config.masquerade.value == Masquerade::KubeProxy;
        let masqueraded = if masqueraded { Settings::MASQUERADED_PODS } else { 0 };
        let primary = facts.identity.primary;
        let address = |ip: Option<IpAddr>| ip.map_or(Ip::UNSPECIFIED, Ip::from);
        let mut own = self.addresses.own();
        // An address must be in the filter before programs use it to recognize answers to this node.
        if let Some(view) = &self.view {
            for ip in addresses(view, &facts.identity).keys().filter(|ip| may_be_source(ip)) {
                own.add(ip);
            }
        }
        NodeSettings {
            netns_cookie: facts.netns_cookie,
            flags: facts.config.flags() | bypasses | accelerated | masqueraded,
            socket_mode: facts.config.socket_mode(),
            source_port_low: Port::new(*ports.start()),
            source_port_high: Port::new(*ports.end()),
            secret: facts.secret,
            hairpin4: HAIRPIN4,
            hairpin6: HAIRPIN6,
            own,
            lifetimes: facts.config.lifetimes(),
            local: facts.local,
            address4: address(primary.v4),
            address6: address(primary.v6),
            pods: facts.pods,
            answer_port_low: Port::new(*answer_ports.start()),
            answer_port_high: Port::new(*answer_ports.end()),
        }
    }
}
