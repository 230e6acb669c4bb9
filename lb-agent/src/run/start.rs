//! The steps from the initial sync to the main loop: sizes, programs, maps, listeners.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tracing::warn;

use super::error::Error;
use super::stop::Stop;
use super::telemetry::Telemetry;
use super::{handover, lost, memory, servers, sizes};
use crate::cli;
use crate::config::Config;
use crate::datapath::{self, Datapath};
use crate::maps::{self, Maps};
use crate::metrics;
use crate::metrics::kube_proxy::KubeProxy;
use crate::reconcile::{Limits, Reconciler};
use crate::snapshot::ViewHealth;
use crate::tracker::Tracker;

/// Sets the sizes of the maps. Returns the entries that the objects need, and the problem if the memory limit is too
/// small for the maps.
pub(super) fn choose_sizes(
    paths: &mut datapath::Options,
    tracker: &Tracker,
) -> (Limits, Option<String>) {
    let (before, counted, limit) = (handover::needed_before(), tracker.demand(), memory::limit());
    // The lists may be incomplete; the run before in this process knew all objects.
    let need = before.map_or(counted, |before| before.max(counted));
    let is_whole = tracker.is_synced() || before.is_some();
    let existing =
        sizes::Existing { sizes: datapath::pinned_sizes(&paths.bpf_dir), stay: !is_whole };
    paths.sizes = sizes::chosen(&paths.sizes, &need, &existing, limit);
    let problem = memory::problem(&paths.sizes, &need, limit);
    if let Some(problem) = &problem {
        warn!(problem, "memory limit is too small for full maps");
    }
    (need, problem)
}

/// Loads the programs and attaches the socket hooks, which takes seconds. Returns `None` if the agent is stopped
/// meanwhile.
pub(super) async fn load(
    paths: datapath::Options,
    stop: &mut Stop,
) -> Result<Option<Datapath>, Error> {
    let loading = spawn_blocking(move || {
        let mut datapath = Datapath::load(&paths)?;
        // During an upgrade the old hooks stay until everything is programmed.
        if !datapath.is_upgrading() {
            datapath.attach_sockets(&paths.cgroup)?;
        }
        Ok(datapath)
    });
    tokio::select! {
        loaded = loading => loaded.map_err(std::io::Error::from)?.map(Some),
        () = stop.asked() => Ok(None),
    }
}

/// Starts the task that logs packets, if some are to be logged.
pub(super) fn follow_packet_log(datapath: &mut Datapath) {
    if let Some(records) = datapath.take_packet_log() {
        drop(tokio::spawn(records.follow()));
    }
}

/// Takes over what the maps have of an earlier run. Call it before any program that uses them is attached to an
/// interface.
pub(super) fn adopt(maps: &mut Maps, is_upgrading: bool) -> Result<Reconciler, maps::Error> {
    lost::replace(maps, is_upgrading)?;
    let actual = maps.actual()?;
    // Adopted rows must be in the filters, or the programs would not look their packets up.
    maps.mark_endpoints(&actual.backends)?;
    // The grace clock (`GraceClock`) starts with the same zero.
    Ok(Reconciler::adopt(maps.limits()?, actual, Duration::ZERO))
}

/// Starts the listeners for probes and metrics.
pub(super) async fn start_servers(
    config: &Config,
    telemetry: &Telemetry,
    kube_proxy: KubeProxy,
    view: ViewHealth,
    shared: &Arc<Maps>,
) -> Result<(), Error> {
    let sources = metrics::MetricSources {
        maps: Arc::clone(shared),
        numbers: Arc::clone(&telemetry.numbers),
        health: telemetry.health.clone(),
        kube_proxy,
        view,
        scrape_lock: Arc::default(),
        configz: config.configz().to_string().into(),
        flags: Arc::new(cli::flags(std::env::args_os())),
    };
    let listeners = [
        ("FailedToStartProxierHealthcheck", "health", config.healthz.value),
        ("FailedToStartMetricServer", "metrics", config.metrics.value),
    ];
    let routers = [crate::health::router(telemetry.health.clone()), metrics::router(sources)];
    for ((reason, what, address), router) in listeners.into_iter().zip(routers) {
        let Some(address) = address else { continue };
        let is_needed = config.bind_hard_fail.value;
        let unbound = &telemetry.unbound;
        if let Err(source) = servers::start(address, what, router, is_needed, unbound) {
            let text = format!("cannot listen on {address} ({what}): {source}");
            // The Event has kube-proxy's reason. It is awaited, because the process ends after this.
            telemetry.reporter.events.end(reason, text).await;
            return Err(Error::Listen { what, address, source });
        }
    }
    Ok(())
}
