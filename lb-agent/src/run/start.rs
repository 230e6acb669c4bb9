//! The steps before the main loop: source of objects, initial sync, programs, listeners.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{info, warn};

use super::agent::Agent;
use super::error::Error;
use super::stop::Stop;
use super::{handover, memory, servers, sizes};
use crate::cli;
use crate::config::Config;
use crate::datapath::{self, Datapath};
use crate::manifests::Manifests;
use crate::maps;
use crate::metrics;
use crate::metrics::kube_proxy::KubeProxy;
use crate::reconcile::Limits;
use crate::snapshot::{Event, NodeContext, ViewHealth};
use crate::tracker::Tracker;
use crate::watch::client::Server;
use crate::watch::source_address::AddressUpdates;
use crate::watch::{ListMode, Watch};

/// Time limits for the objects that determine the sizes of maps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Longest time without an event from the source.
    silence: Duration,
    /// Longest time in all. Meanwhile `/healthz` does not answer, and a liveness probe fails after a minute.
    in_all: Duration,
}

/// Time limit for objects that arrive slowly; those of a large cluster take seconds.
const TRICKLE: Duration = Duration::from_secs(45);
/// Limits if an earlier run left maps: its programs serve meanwhile.
pub(super) const LISTS: Patience = Patience { silence: Duration::from_secs(3), in_all: TRICKLE };
/// Limits if there are no maps yet: nothing is served meanwhile.
pub(super) const FIRST_LISTS: Patience =
    Patience { silence: Duration::from_secs(10), in_all: TRICKLE };
/// Limits for a directory of manifests.
pub(super) const READING: Patience =
    Patience { silence: Duration::from_mins(10), in_all: Duration::from_mins(10) };

/// Makes a tracker that knows only the node's name and what the configuration says of it.
pub(super) fn tracker(config: &Config, node: &str) -> Tracker {
    Tracker::new(NodeContext {
        bound: Some(config.bind_address.value).filter(|ip| !ip.is_unspecified()),
        service_proxy_name: config.service_proxy_name.value.as_deref().map(Arc::from),
        ignores_external_ips: !config.external_ips.value,
        ..NodeContext::named(node)
    })
}

/// Starts the listeners for probes and metrics.
pub(super) async fn start_servers(
    config: &Config,
    agent: &Agent,
    kube_proxy: KubeProxy,
    view: ViewHealth,
    shared: &Arc<maps::Maps>,
) -> Result<(), Error> {
    let sources = metrics::MetricSources {
        maps: Arc::clone(shared),
        numbers: Arc::clone(&agent.numbers),
        health: agent.health.clone(),
        kube_proxy,
        view,
        turn: Arc::default(),
        configz: config.configz().to_string().into(),
        flags: Arc::new(cli::flags(std::env::args_os())),
    };
    let listeners = [
        ("FailedToStartProxierHealthcheck", "health", config.healthz.value),
        ("FailedToStartMetricServer", "metrics", config.metrics.value),
    ];
    let routers = [crate::health::router(agent.health.clone()), metrics::router(sources)];
    for ((reason, what, address), router) in listeners.into_iter().zip(routers) {
        let Some(address) = address else { continue };
        let is_needed = config.bind_hard_fail.value;
        if let Err(source) = servers::start(address, what, router, is_needed, &agent.unbound) {
            let text = format!("cannot listen on {address} ({what}): {source}");
            // The Event has kube-proxy's reason. It is awaited, because the process ends after this.
            agent.reporter.events.end(reason, text).await;
            return Err(Error::Listen { what, address, source });
        }
    }
    Ok(())
}

/// Takes in objects until the initial sync is complete or the time is over.
///
/// Until it returns, no probe is answered and no new pod gets programs. The programs of an earlier run serve meanwhile.
pub(super) async fn lists(
    tracker: &mut Tracker,
    events: &mut mpsc::Receiver<Event>,
    patience: Patience,
) {
    let began = Instant::now();
    let mut heard = began;
    while !tracker.is_synced() {
        let in_all = patience.in_all.saturating_sub(began.elapsed());
        let left = in_all.min(patience.silence.saturating_sub(heard.elapsed()));
        // The total limit also counts for a source that always has another event.
        let event = if left.is_zero() { None } else { timeout(left, events.recv()).await.ok() };
        match event {
            Some(Some(event)) => {
                // A list begins with its request, whether or not the server responds.
                if !matches!(event, Event::ListBegan(_)) {
                    heard = Instant::now();
                }
                tracker.apply(event);
            }
            Some(None) => return,
            None => {
                info!(
                    silence = ?patience.silence,
                    limit = ?patience.in_all,
                    "initial sync not complete; continuing with the objects so far"
                );
                return;
            }
        }
    }
    let (counts, took) = (tracker.counts(), began.elapsed());
    info!(services = counts.services, slices = counts.slices, ?took, "initial sync complete");
}

/// Sets the sizes of the maps. Returns the entries that the objects need, and the problem if the memory limit is too
/// small for the maps.
pub(super) fn choose_sizes(
    paths: &mut datapath::Options,
    tracker: &Tracker,
) -> (Limits, Option<String>) {
    let (before, counted, limit) = (handover::needed_before(), tracker.demand(), memory::limit());
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

/// Starts the task that follows the objects.
pub(super) async fn start_source(
    manifests: Option<&Path>,
    config: &Config,
    node: &str,
    view: &ViewHealth,
    kube_proxy: &KubeProxy,
    events: mpsc::Sender<Event>,
    addresses: AddressUpdates,
) -> Result<Option<Client>, Error> {
    let view = view.clone();
    if let Some(directory) = manifests {
        let manifests = Manifests::open(directory, node)?;
        drop(tokio::spawn(manifests.run(view, events)));
        return Ok(None);
    }
    let client = server(config).client(Some(Arc::new(kube_proxy.clone())), addresses).await?;
    let watch = Watch {
        node: node.to_owned(),
        service_proxy_name: config.service_proxy_name.value.clone(),
        list: ListMode::default(),
    };
    drop(tokio::spawn(watch.run(client.clone(), view, events)));
    Ok(Some(client))
}

/// Returns the sources of the address and credentials of the API server.
pub(super) fn server(config: &Config) -> Server {
    Server { kubeconfig: config.kubeconfig.value.clone(), master: config.master.value.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Setting;
    use crate::snapshot::ObjectKind;

    #[test]
    fn a_specific_bind_address_is_known_to_translations() {
        let bound = |text: &str| {
            let bind_address = Setting::new(text.parse().expect("an address"));
            tracker(&Config { bind_address, ..Config::default() }, "here").context().bound
        };
        assert_eq!(bound("10.0.0.9"), "10.0.0.9".parse().ok());
        assert_eq!((bound("0.0.0.0"), bound("::")), (None, None));
    }

    #[tokio::test]
    async fn wait_for_slow_lists_is_bounded() {
        let (sender, mut events) = mpsc::channel(1);
        let source = tokio::spawn(async move {
            while sender.send(Event::ListBegan(ObjectKind::Service)).await.is_ok() {}
        });
        let mut tracker = Tracker::new(NodeContext::named("here"));
        let (silence, in_all) = (Duration::from_hours(1), Duration::from_millis(50));
        let waiting = lists(&mut tracker, &mut events, Patience { silence, in_all });
        timeout(Duration::from_secs(30), waiting).await.expect("an end");
        assert!(!tracker.is_synced());
        // Later events are still received.
        assert!(events.recv().await.is_some());
        source.abort();
    }

    #[tokio::test]
    async fn complete_lists_end_the_wait() {
        let (sender, mut events) = mpsc::channel(10);
        for kind in [ObjectKind::Service, ObjectKind::Slice, ObjectKind::Node] {
            sender.send(Event::Synced(kind)).await.expect("a receiver");
        }
        let mut tracker = Tracker::new(NodeContext::named("here"));
        let hour = Duration::from_hours(1);
        let waiting = lists(&mut tracker, &mut events, Patience { silence: hour, in_all: hour });
        timeout(Duration::from_secs(30), waiting).await.expect("an end");
        assert!(tracker.is_synced());
    }
}
