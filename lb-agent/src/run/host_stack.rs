//! Routes, `lo` and timeouts of netfilter for packets of host processes: set once at the start, then by the task
//! `node/host::follow`, to which the main loop publishes the frontends.

use tokio::sync::watch;
use tracing::{debug, warn};

use super::devices::Devices;
use super::service_maps::ServiceMaps;
use crate::config::Config;
use crate::node::host::conntrack::{NetfilterTimeouts, Raise};
use crate::node::host::{self, EarlierLoopback, FrontendNetworks};
use crate::plan::Family;
use crate::snapshot::NodeContext;
use crate::state_file::{conntrack_file, loopback_file};

/// The ends of the channels to the tasks that change the stack.
pub(super) struct HostStack {
    /// Publishes the frontends that processes of this host need routes to.
    frontends: watch::Sender<Option<FrontendNetworks>>,
    /// Whether those frontends may have changed since they were published.
    is_due: bool,
    /// The problem of earlier settings of the loopback interface that cannot be saved.
    unsaved_loopback: watch::Receiver<Option<String>>,
}

impl HostStack {
    /// Configures the stack now, and starts the task that does so after changes. A failure is logged; everything else is
    /// served.
    pub(super) async fn prepare(config: &Config, context: &NodeContext) -> Self {
        let needs_v6 = context.ip(Family::V6).is_some();
        let (mut earlier, unsaved_loopback) =
            EarlierLoopback::new(loopback_file(&config.bpf_dir.value));
        let serves_loopback = config.localhost_node_ports.value;
        // The programs send packets of this host's processes to that interface.
        if let Err(error) = host::open_loopback(&mut earlier, serves_loopback, needs_v6).await {
            let error = crate::chain(&error);
            warn!(error, "packets of host processes may not be served yet; retrying");
        }
        if let Err(error) = host::prepare_routing().await {
            // The rule is added with the first route.
            debug!(
                error = crate::chain(&error),
                "the rule for routes to frontends is not there yet"
            );
        }
        let timeouts = NetfilterTimeouts {
            record: conntrack_file(&config.bpf_dir.value),
            lifetimes: config.lifetimes(),
        };
        // Before the first status, which would name the timeouts as a problem.
        timeouts.raise().iter().for_each(Raise::log);
        let (frontends, receiver) = watch::channel(None);
        drop(tokio::spawn(host::follow(receiver, earlier, serves_loopback, timeouts)));
        Self { frontends, is_due: true, unsaved_loopback }
    }

    /// Notes that the frontends, or what they depend on, may have changed.
    pub(super) const fn set_due(&mut self) {
        self.is_due = true;
    }

    /// Has the task set its routes again, although the frontends are the same.
    pub(super) fn restore_routes(&self) {
        // The channel wakes its receiver although the value stays the same.
        self.frontends.send_modify(|_| {});
    }

    /// Publishes the frontends that processes of this host need routes to: those that are not addresses of the node.
    pub(super) fn publish(&mut self, devices: &Devices, maps: &ServiceMaps) {
        let interfaces = devices.external();
        // A retry attaches programs to interfaces, too, and sets nothing due.
        let has_changed =
            self.frontends.borrow().as_ref().is_some_and(|all| all.interfaces != interfaces);
        // Before the initial sync is programmed, frontends of an earlier run would lose their routes.
        if !maps.is_programmed() || !std::mem::take(&mut self.is_due) && !has_changed {
            return;
        }
        let networks = maps.reconciler().networks(|ip| devices.is_own(ip));
        let sources = devices.primary();
        let wanted = Some(FrontendNetworks { networks, interfaces, sources });
        self.frontends.send_if_modified(|frontends| {
            let differs = *frontends != wanted;
            if differs {
                *frontends = wanted;
            }
            differs
        });
    }

    /// Returns the problem for operators.
    pub(super) fn problem(&self) -> Option<String> {
        self.unsaved_loopback.borrow().clone()
    }
}
