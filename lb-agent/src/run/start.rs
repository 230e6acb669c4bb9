//! What stands before the loop: the source, the first lists, the programs, the listeners.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::info;

use super::agent::Agent;
use super::stop::Stop;
use super::{Error, servers};
use crate::cli;
use crate::config::Config;
use crate::datapath::{self, Datapath};
use crate::manifests::Manifests;
use crate::maps;
use crate::metrics;
use crate::metrics::kube_proxy::KubeProxy;
use crate::snapshot::{Event, NodeContext, ViewHealth};
use crate::tracker::Tracker;
use crate::watch::client::Server;
use crate::watch::{ListMode, Watch};

/// How long the maps wait for the lists that tell their sizes, without a word from the source, where an earlier run
/// left maps.
pub(super) const LISTS: Duration = Duration::from_secs(3);
/// The same where it left none: nothing is served meanwhile.
pub(super) const FIRST_LISTS: Duration = Duration::from_secs(10);
/// How long reading a folder may take.
pub(super) const READING: Duration = Duration::from_mins(10);

/// A tracker that knows only who we are.
pub(super) fn tracker(config: &Config, node: &str) -> Tracker {
    Tracker::new(NodeContext {
        service_proxy_name: config.service_proxy_name.value.as_deref().map(Arc::from),
        ..NodeContext::named(node)
    })
}

/// Listens for probes and scrapes.
pub(super) async fn start_servers(
    config: &Config,
    agent: &Agent,
    (kube_proxy, view): (KubeProxy, ViewHealth),
    shared: &Arc<maps::Maps>,
) -> Result<(), Error> {
    let sources = metrics::Sources {
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
        if let Err(source) = servers::start(address, what, router, is_needed) {
            let text = format!("cannot listen on {address} ({what}): {source}");
            agent.shown.events.end(reason, text).await;
            return Err(Error::Listen { what, address, source });
        }
    }
    Ok(())
}

/// Takes the first lists in, by which the maps are made, if they come soon. What an earlier run left serves meanwhile.
pub(super) async fn lists(
    tracker: &mut Tracker,
    events: &mut mpsc::Receiver<Event>,
    patience: Duration,
) {
    let began = Instant::now();
    while !tracker.is_synced() {
        match timeout(patience, events.recv()).await {
            Ok(Some(event)) => drop(tracker.apply(event)),
            Ok(None) => return,
            Err(_) => {
                info!(?patience, "no complete lists yet; maps get the sizes that they had");
                return;
            }
        }
    }
    let (counts, took) = (tracker.counts(), began.elapsed());
    info!(
        services = counts.services,
        slices = counts.slices,
        ?took,
        "the first lists are complete"
    );
}

/// Loads and attaches to sockets, which takes seconds; nothing if we are asked to stop meanwhile.
pub(super) async fn load(
    paths: datapath::Options,
    stop: &mut Stop,
) -> Result<Option<Datapath>, Error> {
    let loading = spawn_blocking(move || {
        let mut datapath = Datapath::load(&paths)?;
        if !datapath.is_beside() {
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
    (view, kube_proxy): (&ViewHealth, &KubeProxy),
    events: mpsc::Sender<Event>,
) -> Result<Option<Client>, Error> {
    let view = view.clone();
    if let Some(folder) = manifests {
        let manifests = Manifests::open(folder, node)?;
        drop(tokio::spawn(manifests.run(view, events)));
        return Ok(None);
    }
    let server =
        Server { kubeconfig: config.kubeconfig.value.clone(), master: config.master.value.clone() };
    let client = server.client(&view, Some(Arc::new(kube_proxy.clone()))).await?;
    let watch = Watch {
        node: node.to_owned(),
        service_proxy_name: config.service_proxy_name.value.clone(),
        list: ListMode::default(),
    };
    drop(tokio::spawn(watch.run(client.clone(), view, events)));
    Ok(Some(client))
}
