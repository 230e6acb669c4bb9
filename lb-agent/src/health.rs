//! `/healthz`, `/livez` and `/readyz`, as kube-proxy answers them (contract 6.2): what load balancers in front
//! of the cluster ask. Knows only the state it is reported.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use jiff::Timestamp;
use serde::Serialize;

use crate::plan::Family;

/// The text of Go, and so of kube-proxy, for a time that has not come yet.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The state that the agent reports; cheap to clone, all clones are one.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<Reported>>);

#[derive(Debug, Default)]
struct Reported {
    patience: Duration,
    ready: bool,
    node: NodeState,
    updated: Option<Timestamp>,
    pending_since: Option<Instant>,
    /// Since when pins are missing that cannot be put back.
    unpinned_since: Option<Instant>,
    /// When the loop began its last turn; nothing before it runs.
    turned: Option<Instant>,
    /// How many problems the node has, and how many kinds of objects are not followed.
    troubles: [usize; 2],
    answers: BTreeMap<(&'static str, u16), u64>,
}

/// Whether this node should get traffic from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// No Node object of our name is known.
    #[default]
    Unknown,
    /// It stays.
    Eligible,
    /// It is being deleted, or about to be.
    Leaving,
}

/// The answer of `/healthz` and `/livez`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, FamilyBody>,
    /// Not kube-proxy's: there only while `status` names something.
    #[serde(skip_serializing_if = "is_zero")]
    node_problems: usize,
    #[serde(skip_serializing_if = "is_zero")]
    stale_kinds: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
const fn is_zero(count: &usize) -> bool {
    *count == 0
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

impl Health {
    /// Nothing is known yet. A change that waits as long as `patience` will mean that we are stuck.
    pub fn new(patience: Duration) -> Self {
        Self(Arc::new(Mutex::new(Reported { patience, ..Reported::default() })))
    }

    /// Everything that was known at the start is programmed, every device carries its programs.
    pub fn ready(&self) {
        self.reported().ready = true;
    }

    /// Whether [`Health::ready`] was said.
    pub fn is_ready(&self) -> bool {
        self.reported().ready
    }

    /// Takes in the state of our Node object.
    pub fn node(&self, node: NodeState) {
        self.reported().node = node;
    }

    /// A change waits since then, or none does.
    pub fn pending(&self, since: Option<Instant>) {
        self.reported().pending_since = since;
    }

    /// Pins are missing since then and cannot be put back, or none is. Changes that are programmed meanwhile do not
    /// mend that.
    pub fn unpinned(&self, since: Option<Instant>) {
        self.reported().unpinned_since = since;
    }

    /// So many problems does the node have, and so many kinds of objects are not followed. They change no verdict: a
    /// restart, or traffic to another node, helps against none of them.
    pub fn troubles(&self, problems: usize, stale_kinds: usize) {
        self.reported().troubles = [problems, stale_kinds];
    }

    /// The loop begins a turn. From the first one on, none for as long as `patience` means that it hangs.
    pub fn turns(&self) {
        self.reported().turned = Some(Instant::now());
    }

    /// All changes up to now are programmed.
    pub fn updated(&self) {
        let mut reported = self.reported();
        reported.updated = Some(Timestamp::now());
        reported.pending_since = None;
    }

    /// Whether changes are programmed in time.
    pub fn is_fresh(&self) -> bool {
        self.reported().is_fresh()
    }

    /// How often each path answered with each code.
    pub fn answers(&self) -> BTreeMap<(&'static str, u16), u64> {
        self.reported().answers.clone()
    }

    fn reported(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, and whether it is a good one.
    fn answer(&self, path: &'static str, counts_node: bool) -> Response {
        let mut reported = self.reported();
        let is_fresh = reported.is_fresh();
        let is_eligible = reported.node == NodeState::Eligible;
        let is_good = is_fresh && (is_eligible || !counts_node);
        let now = Timestamp::now().to_string();
        let updated = reported.updated.map(|at| at.to_string());
        // A family is shown once it was programmed.
        let family = |family: Family| {
            let last_updated = updated.clone()?;
            Some((family.name(), FamilyBody { last_updated, healthy: is_fresh }))
        };
        let status = Family::ALL.into_iter().filter_map(family).collect();
        let [node_problems, stale_kinds] = reported.troubles;
        let body = Body {
            // A healthy agent is up to date now, whether or not something changed.
            last_updated: if is_good {
                now.clone()
            } else {
                updated.unwrap_or_else(|| NEVER.to_owned())
            },
            current_time: now,
            node_eligible: counts_node.then_some(is_eligible),
            healthy: is_fresh,
            status,
            node_problems,
            stale_kinds,
        };
        let code = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        *reported.answers.entry((path, code.as_u16())).or_default() += 1;
        drop(reported);
        let text = serde_json::to_string(&body).unwrap_or_default();
        let headers = [
            (header::CONTENT_TYPE, "application/json"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        (code, headers, text).into_response()
    }
}

impl Reported {
    fn is_fresh(&self) -> bool {
        let is_recent = |since: Instant| since.elapsed() < self.patience;
        [self.pending_since, self.unpinned_since, self.turned]
            .into_iter()
            .all(|since| since.is_none_or(is_recent))
    }
}

/// The paths, by any method, as with kube-proxy.
pub fn router(health: Health) -> Router {
    Router::new()
        .route("/healthz", any(async |State(health): State<Health>| health.answer("healthz", true)))
        .route("/livez", any(async |State(health): State<Health>| health.answer("livez", false)))
        .route("/readyz", any(readyz))
        .fallback(elsewhere)
        .with_state(health)
}

/// Answers other paths as Go's multiplexer does: a redirect to the path that was meant, or 404.
async fn elsewhere(method: Method, uri: Uri) -> Response {
    let clean = clean(uri.path());
    if clean == uri.path() || method == Method::CONNECT {
        let headers = [
            (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        return (StatusCode::NOT_FOUND, headers, "404 page not found\n").into_response();
    }
    let to = uri.query().map_or_else(|| clean.clone(), |query| format!("{clean}?{query}"));
    let headers = [(header::LOCATION, &*to), (header::CONTENT_TYPE, "text/html; charset=utf-8")];
    let is_asked = method == Method::GET || method == Method::HEAD;
    // As Go writes it; the path was one of a request, so it has no quotation marks.
    let page = format!("<a href=\"{to}\">Temporary Redirect</a>.\n\n");
    let page = if is_asked { page } else { String::new() };
    (StatusCode::TEMPORARY_REDIRECT, headers, page).into_response()
}

/// A path without empty parts, `.` and `..`; a slash at its end stays.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let end = if path.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    format!("/{}{end}", parts.join("/"))
}

async fn readyz(State(health): State<Health>) -> (StatusCode, &'static str) {
    if health.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "initial sync not complete\n")
    }
}

#[cfg(test)]
mod tests;
