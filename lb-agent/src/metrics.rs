//! `/metrics`: read from the maps at each scrape, so that no number is stored twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use prometheus_client::registry::Registry;
use tracing::warn;

use crate::datapath::Fault;
use crate::health::Health;
use crate::maps::Maps;
use crate::node::ChangeSource;
use crate::reconcile::Usage;
use crate::snapshot::ViewHealth;
use crate::syscall::unhurried;

mod collect;
pub mod kube_proxy;
mod process;
mod text;
mod zpages;

/// Numbers that the main loop keeps for `/metrics`.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Number of successful map writes.
    pub operations: AtomicU64,
    /// Map writes that failed; each is retried.
    pub failures: AtomicU64,
    /// Entries that a map refused; their services are not served, or are served as before.
    pub unwritten: AtomicU64,
    /// Service ports not served because a map is full.
    pub refused: AtomicU64,
    /// Invalid fields of the Node, of Services and of their slices.
    pub findings: AtomicU64,
    /// Faults of the node: interfaces without programs, other programs before ours, and so on.
    pub node_problems: AtomicU64,
    /// Frontends that several Services claim.
    pub conflicts: AtomicU64,
    /// Flow entries that sweeps removed.
    pub swept: AtomicU64,
    /// Interfaces with programs: of pods, and external.
    pub devices: [AtomicU64; 2],
    /// Attachments that another program undid and that were repaired, in the order of [`Fault::ALL`].
    pub repairs: [AtomicU64; 4],
    /// Interfaces that got programs, by the source of the change, in the order of [`ChangeSource::ALL`].
    pub attached: [AtomicU64; 3],
    /// Entries of the maps that the agent writes, from the mirror.
    pub usage: Mutex<Usage>,
}

impl Numbers {
    pub fn set(number: &AtomicU64, value: usize) {
        number.store(value as u64, Ordering::Relaxed);
    }

    /// Adds to a number.
    pub fn add(number: &AtomicU64, value: usize) {
        number.fetch_add(value as u64, Ordering::Relaxed);
    }

    /// Counts the repair of a fault.
    pub fn repaired(&self, fault: Fault) {
        let place = Fault::ALL.iter().zip(&self.repairs).find(|(of, _)| **of == fault);
        if let Some((_, number)) = place {
            Self::add(number, 1);
        }
    }

    /// Counts an interface that got programs.
    pub fn attached(&self, source: ChangeSource) {
        let place = ChangeSource::ALL.iter().zip(&self.attached).find(|(of, _)| **of == source);
        if let Some((_, number)) = place {
            Self::add(number, 1);
        }
    }

    fn usage(&self) -> Usage {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sources that the metrics server reads.
#[derive(Clone, Debug)]
pub struct MetricSources {
    pub maps: Arc<Maps>,
    /// Numbers of the main loop.
    pub numbers: Arc<Numbers>,
    /// Counts of responses of the health server.
    pub health: Health,
    /// Metrics for kube-proxy's dashboards.
    pub kube_proxy: kube_proxy::KubeProxy,
    /// State of the watch of each kind of object.
    pub view: ViewHealth,
    /// Lock that lets one scrape at a time read the maps.
    pub scrape_lock: Arc<tokio::sync::Mutex<()>>,
    /// The configuration, for `/configz`.
    pub configz: Arc<str>,
    /// Flags and their values, for `/flagz`.
    pub flags: Arc<BTreeMap<String, String>>,
}

/// Paths that answer, as `/statusz` lists them.
const PATHS: [&str; 6] = ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode", "/statusz"];

/// Returns the routes of the metrics server.
pub fn router(sources: MetricSources) -> Router {
    let zpages = zpages::router(Arc::clone(&sources.flags), &PATHS);
    Router::new()
        .route("/metrics", any(metrics))
        .route("/proxyMode", any(async || "ebpf"))
        .route("/configz", any(configz))
        .with_state(sources)
        .merge(zpages)
}

async fn configz(State(sources): State<MetricSources>) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, sources.configz.to_string()).into_response()
}

async fn metrics(State(sources): State<MetricSources>, headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let is_open_metrics = text::is_open_metrics(accepts.unwrap_or_default());
    // Pages are made one at a time, however many clients request them, because each page reads whole maps.
    let scrape_lock = Arc::clone(&sources.scrape_lock);
    let scrape_lock = scrape_lock.lock_owned().await;
    // Reading maps takes milliseconds, and the threads of the runtime also answer probes. The task holds the lock, so a
    // client that leaves does not let the next page begin.
    let page = tokio::task::spawn_blocking(move || {
        let page = unhurried(|| page(&sources));
        drop(scrape_lock);
        page
    });
    let page = page.await;
    match page {
        Ok(Ok(page)) if is_open_metrics => {
            ([(header::CONTENT_TYPE, text::OPEN_METRICS)], page).into_response()
        }
        Ok(Ok(page)) => ([(header::CONTENT_TYPE, text::PLAIN)], text::plain(&page)).into_response(),
        Ok(Err(error)) => {
            warn!(error, "collecting metrics failed");
            (StatusCode::INTERNAL_SERVER_ERROR, error).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn page(sources: &MetricSources) -> Result<String, String> {
    let kube_proxy = sources.kube_proxy.clone();
    let snapshot = collect::Snapshot::take(sources).map_err(|error| crate::chain(&error))?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    registry.register_collector(Box::new(process::Process));
    kube_proxy.register(&mut registry);
    text::encoded(&registry)
}
