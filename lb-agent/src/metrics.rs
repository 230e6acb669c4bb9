//! `/metrics`: read from the maps at each scrape, so nothing is stored twice.

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

mod collect;
pub mod kube_proxy;
mod process;
mod text;
mod zpages;

/// Numbers that the event loop keeps for `/metrics`.
#[derive(Debug, Default)]
pub struct Numbers {
    /// Map writes.
    pub operations: AtomicU64,
    /// Map writes that failed and are tried again.
    pub failures: AtomicU64,
    /// Entries that a map did not take; their services are not served.
    pub unwritten: AtomicU64,
    /// Service ports that found no room.
    pub refused: AtomicU64,
    /// Fields of our Node, of Services and of their slices that cannot be used as they are.
    pub findings: AtomicU64,
    /// Faults of the node: interfaces without programs, programs of others before ours.
    pub node_problems: AtomicU64,
    /// Frontends that several services ask for.
    pub conflicts: AtomicU64,
    /// Halves of flows that were swept.
    pub swept: AtomicU64,
    /// Devices that carry programs, pods' and external.
    pub devices: [AtomicU64; 2],
    /// Attachments that somebody else undid and that were repaired, in the order of [`Fault::ALL`].
    pub repairs: [AtomicU64; 4],
    /// Devices that got programs, by the source of the change, in the order of [`ChangeSource::ALL`].
    pub attached: [AtomicU64; 3],
    /// The entries of each map, by the mirror.
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

    /// Counts a repair.
    pub fn repaired(&self, fault: Fault) {
        let place = Fault::ALL.iter().zip(&self.repairs).find(|(of, _)| **of == fault);
        if let Some((_, number)) = place {
            Self::add(number, 1);
        }
    }

    /// Counts a device that got programs.
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

/// Everything that `/metrics` reads.
#[derive(Clone, Debug)]
pub struct Sources {
    pub maps: Arc<Maps>,
    /// The loop's numbers.
    pub numbers: Arc<Numbers>,
    /// Answers given.
    pub health: Health,
    /// Metrics that kube-proxy's dashboards read.
    pub kube_proxy: kube_proxy::KubeProxy,
    /// Since when the view of the objects is old.
    pub view: ViewHealth,
    /// The lock of the one that reads the maps.
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// The configuration, for `/configz`.
    pub configz: Arc<str>,
    /// Flags and their values, for `/flagz`.
    pub flags: Arc<BTreeMap<String, String>>,
}

/// Everything that answers.
const PATHS: [&str; 6] = ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode", "/statusz"];

/// The paths.
pub fn router(sources: Sources) -> Router {
    let zpages = zpages::router(Arc::clone(&sources.flags), &PATHS);
    Router::new()
        .route("/metrics", any(metrics))
        .route("/proxyMode", any(async || "ebpf"))
        .route("/configz", any(configz))
        .with_state(sources)
        .merge(zpages)
}

async fn configz(State(sources): State<Sources>) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, sources.configz.to_string()).into_response()
}

async fn metrics(State(sources): State<Sources>, headers: HeaderMap) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let is_open_metrics = text::is_open_metrics(accepts.unwrap_or_default());
    // One page at a time, however many ask: each reads whole maps.
    let turn = Arc::clone(&sources.turn);
    let turn = turn.lock().await;
    // Reading them takes milliseconds: not on the thread that answers probes.
    let page = tokio::task::spawn_blocking(move || page(&sources)).await;
    drop(turn);
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

fn page(sources: &Sources) -> Result<String, String> {
    let kube_proxy = sources.kube_proxy.clone();
    let snapshot = collect::Snapshot::take(sources).map_err(|error| crate::chain(&error))?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    registry.register_collector(Box::new(process::Process));
    kube_proxy.register(&mut registry);
    text::encoded(&registry)
}
