//! Changes of the node: its links and addresses, and its Node object.

use lb_common::config::Settings;

use super::Agent;
use crate::node::Primary;
use crate::node::watch::PublishedView;
use crate::plan::Family;

impl Agent {
    /// Takes in a change of links or addresses.
    pub(super) fn take_view(&mut self, published: PublishedView) {
        let Some(published) = published else { return };
        let before = self.devices.has_primary();
        self.devices.set_view(published);
        self.host_stack.set_due();
        if self.devices.has_primary() != before {
            // The kernel has removed the routes with the source of an address that was removed.
            self.host_stack.restore_routes();
        }
        self.update_node();
        // New interfaces come first: the next event may be about a pod that waits for its programs (ADR 0030).
        if self.inspector.is_due() {
            self.inspect();
        }
    }

    /// Takes in a change of the Node object, or its absence.
    pub(super) fn take_node(&mut self) {
        self.telemetry.node(self.tracker.node());
        self.host_stack.set_due();
        self.update_node();
    }

    /// Updates settings, addresses and interfaces after a change of links or Node.
    pub(in crate::run) fn update_node(&mut self) {
        let context = self.tracker.context();
        let ip = |family| context.ip(family);
        let primary = Primary { v4: ip(Family::V4), v6: ip(Family::V6) };
        self.devices.set_node(self.tracker.node(), primary);
        self.put_settings();
        // The programs of another layout serve until our maps have every Service (ADR 0005).
        if self.service_maps.is_complete() {
            self.devices.switch();
        }
        self.devices.apply(self.tracker.is_synced(), &self.telemetry.numbers);
        // The interfaces are attached now, and their flags are known.
        self.put_settings();
        self.devices.accelerate_waiting();
        let (own, all) = self.devices.probed();
        self.telemetry.reporter.addresses(&own, all);
        self.report_ready();
    }

    /// Writes the settings that follow from the node.
    pub(in crate::run) fn put_settings(&mut self) {
        let mut settings = self.devices.settings();
        let is_taking_over = self.takeover.is_under_way();
        if is_taking_over {
            // The flag makes the programs leave connections alone that netfilter translates.
            settings.flags |= Settings::TAKE_OVER;
        }
        // Open connections are recorded before the flag is cleared: from then on their packets would count as requests.
        self.service_maps.hold(is_taking_over);
        self.change(|reconciler, _| reconciler.set_node(&settings));
    }
}
