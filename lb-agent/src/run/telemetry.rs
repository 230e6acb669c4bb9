//! Everything that others read about the agent: probes, metrics, the state file, reports to the cluster, and the
//! notifications of the service manager.

use std::sync::{Arc, PoisonError};

use kube::Client;

use super::checks::Checks;
use super::kubernetes::Reporter;
use super::servers::Unbound;
use super::service_manager::ServiceManager;
use super::service_maps::ServiceMaps;
use super::state::State;
use crate::config::Config;
use crate::health::{Health, NodeState};
use crate::health_check::HealthChecks;
use crate::kube_events::Events;
use crate::metrics::Numbers;
use crate::metrics::kube_proxy::KubeProxy;
use crate::reconcile::Reconciler;
use crate::snapshot::{NodeSpec, ViewHealth};
use crate::tracker::Tracker;

/// The reports of the main loop, each for its readers.
pub(super) struct Telemetry {
    pub(super) health: Health,
    pub(super) reporter: Reporter,
    pub(super) numbers: Arc<Numbers>,
    pub(super) state: State,
    pub(super) manager: ServiceManager,
    pub(super) unbound: Unbound,
}

impl Telemetry {
    /// Makes the reports of the agent on the node `name`, of which nothing is known yet. Events go to the API server of
    /// `client`.
    pub(super) fn new(
        config: &Config,
        name: &str,
        numbers: Arc<Numbers>,
        view: ViewHealth,
        kube_proxy: KubeProxy,
        client: Option<Client>,
    ) -> Self {
        let health = Health::new(config.patience());
        let checks = Checks::new(HealthChecks::new(health.clone()));
        let events = client.map(|client| Events::start(client, name)).unwrap_or_default();
        Self {
            health,
            reporter: Reporter::new(checks, events, kube_proxy),
            numbers,
            state: State::at(&config.bpf_dir.value, name, view),
            manager: ServiceManager::of_environment(),
            unbound: Unbound::default(),
        }
    }

    /// Reports the Node object of this node, or its absence.
    pub(super) fn node(&mut self, node: Option<&NodeSpec>) {
        let deleting = node.map(|node| node.deleting || node.to_be_deleted);
        self.health.node(match deleting {
            None => NodeState::Unknown,
            Some(true) => NodeState::Deleting,
            Some(false) => NodeState::Eligible,
        });
        self.reporter.node(node);
        self.state.changed();
    }

    /// Reports that everything that arrived is programmed.
    pub(super) fn synced(&mut self) {
        self.state.synced();
        self.health.updated();
    }

    /// Reports that the agent serves everything.
    pub(super) fn ready(&mut self) {
        self.health.ready();
        self.manager.ready();
    }

    /// Reports the problems of the node. They are counted at this one place, so that metric, probe and status agree.
    pub(super) fn node_problems(&mut self, problems: Vec<String>) {
        Numbers::set(&self.numbers.node_problems, problems.len());
        self.health.troubles(problems.len(), self.state.stale_kinds());
        self.state.set_node_problems(problems);
    }

    /// Reports what is due once a second.
    pub(super) fn tick(&mut self, tracker: &Tracker) {
        self.manager.alive();
        self.reporter.tick(tracker);
        self.reporter.changes(tracker);
    }

    /// Writes the state for `status` and the lists before it returns. `ambiguous`: interfaces whose role is a guess.
    pub(super) fn write_state(
        &mut self,
        tracker: &Tracker,
        maps: &ServiceMaps,
        ambiguous: &[String],
    ) {
        self.count(tracker, maps.reconciler());
        self.state.write_sync();
        self.state.write_now(maps.reconciler(), maps.unwritten(), ambiguous);
    }

    /// Writes the state in a thread of its own, and reports Services that are served only in part, if the state is due.
    pub(super) fn write_state_if_due(
        &mut self,
        tracker: &Tracker,
        maps: &ServiceMaps,
        ambiguous: &[String],
    ) {
        self.state.write_sync();
        if self.state.is_due() {
            let reconciler = maps.reconciler();
            self.count(tracker, reconciler);
            let of_source = self.state.of_source();
            self.reporter.shortcomings(tracker, reconciler, maps.unwritten(), &of_source);
            self.state.write(reconciler, maps.unwritten(), ambiguous);
        }
    }

    fn count(&mut self, tracker: &Tracker, reconciler: &Reconciler) {
        Numbers::set(&self.numbers.findings, tracker.findings().count());
        self.state.set_findings(tracker.findings());
        Numbers::set(&self.numbers.refused, reconciler.refused().count());
        Numbers::set(&self.numbers.conflicts, reconciler.contested());
        let mut usage = self.numbers.usage.lock().unwrap_or_else(PoisonError::into_inner);
        *usage = reconciler.usage();
    }
}
