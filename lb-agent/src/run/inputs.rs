//! The inputs of the main loop: objects and interfaces. They arrive before the maps are open, because the sizes of the
//! maps depend on the objects.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tracing::info;

use super::error::Error;
use crate::config::Config;
use crate::datapath;
use crate::manifests::Manifests;
use crate::metrics::kube_proxy::KubeProxy;
use crate::node;
use crate::node::watch::PublishedView;
use crate::snapshot::{Event, NodeContext, ViewHealth};
use crate::tracker::Tracker;
use crate::watch::client::Server;
use crate::watch::source_address::AddressUpdates;
use crate::watch::{ListMode, Watch};

/// Time limit for objects that arrive slowly; those of a large cluster take seconds.
const TRICKLE: Duration = Duration::from_secs(45);
/// Limits if an earlier run left maps: its programs serve meanwhile.
const LISTS: Patience = Patience { silence: Duration::from_secs(3), in_all: TRICKLE };
/// Limits if there are no maps yet: nothing is served meanwhile.
const FIRST_LISTS: Patience = Patience { silence: Duration::from_secs(10), in_all: TRICKLE };
/// Limits for a directory of manifests.
const READING: Patience =
    Patience { silence: Duration::from_mins(10), in_all: Duration::from_mins(10) };

/// The sources of the main loop, and the objects that have arrived.
pub(super) struct Inputs {
    pub(super) tracker: Tracker,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) views: watch::Receiver<PublishedView>,
    /// State of the source of each kind of object.
    pub(super) view: ViewHealth,
    pub(super) kube_proxy: KubeProxy,
    /// The client of the API server; `None` with a directory of manifests.
    pub(super) client: Option<Client>,
}

impl Inputs {
    /// Starts the tasks that follow interfaces and objects. `name`: that of the node.
    pub(super) async fn open(
        manifests: Option<&Path>,
        config: &Config,
        name: &str,
    ) -> Result<Self, Error> {
        let view = ViewHealth::default();
        let (sender, events) = mpsc::channel(4_096);
        let kube_proxy = KubeProxy::default();
        let (shows, views) = watch::channel(None);
        drop(tokio::spawn(node::watch::run(shows)));
        // The client ends its connections from an address that the node loses.
        let own = Some(views.clone());
        let source = start_source(manifests, config, name, &view, &kube_proxy, sender, own);
        let client = source.await?;
        Ok(Self { tracker: tracker(config, name), events, views, view, kube_proxy, client })
    }

    /// Takes in objects until the initial sync is complete or the time is over ([`lists`]).
    pub(super) async fn sync(&mut self, patience: Patience) {
        lists(&mut self.tracker, &mut self.events, patience).await;
    }
}

/// Time limits for the objects that determine the sizes of maps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Longest time without an event from the source.
    silence: Duration,
    /// Longest time in all. Meanwhile `/healthz` does not answer, and a liveness probe fails after a minute.
    in_all: Duration,
}

impl Patience {
    /// Returns the limits for a directory of manifests, or for the API server, where they depend on the maps in
    /// `bpf_dir`.
    pub(super) fn of(manifests: Option<&Path>, bpf_dir: &Path) -> Self {
        let has_maps = datapath::maps_directory(bpf_dir).exists();
        match (manifests, has_maps) {
            // A directory is always read completely; there is no server to wait for.
            (Some(_), _) => READING,
            (None, true) => LISTS,
            (None, false) => FIRST_LISTS,
        }
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

/// Makes a tracker that knows only the node's name and what the configuration says of it.
pub(super) fn tracker(config: &Config, node: &str) -> Tracker {
    Tracker::new(NodeContext {
        bound: Some(config.bind_address.value).filter(|ip| !ip.is_unspecified()),
        service_proxy_name: config.service_proxy_name.value.as_deref().map(Arc::from),
        ignores_external_ips: !config.external_ips.value,
        ..NodeContext::named(node)
    })
}

/// Returns the sources of the address and credentials of the API server.
pub(super) fn server(config: &Config) -> Server {
    Server { kubeconfig: config.kubeconfig.value.clone(), master: config.master.value.clone() }
}

/// Takes in objects until the initial sync is complete or the time is over.
///
/// Until it returns, no probe is answered and no new pod gets programs. The programs of an earlier run serve meanwhile.
async fn lists(tracker: &mut Tracker, events: &mut mpsc::Receiver<Event>, patience: Patience) {
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
            // The source has ended; the main loop notices it again, and reports it (`Turn::Lost`).
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
