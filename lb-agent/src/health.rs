//! `/healthz`, `/livez` and `/readyz` for load balancers in front of the cluster, as kube-proxy serves them (contract
//! 6.2).
//!
//! This module knows only the state that the agent reports.

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

/// The zero time as Go, and so kube-proxy, prints it.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The state that the agent reports. Clones share it.
#[derive(Clone, Debug)]
pub struct Health(Arc<Mutex<Reported>>);

#[derive(Debug, Default)]
struct Reported {
    patience: Duration,
    ready: bool,
    node: NodeState,
    updated: Option<Timestamp>,
    pending_since: Option<Instant>,
    /// Time since which pins are missing and cannot be restored.
    unpinned_since: Option<Instant>,
    /// Start of the loop's last turn; `None` before the first one.
    turned: Option<Instant>,
    /// Number of problems of the node, and number of kinds of objects whose watch fails.
    troubles: [usize; 2],
    answers: BTreeMap<(&'static str, u16), u64>,
}

/// Whether this node should receive traffic from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeState {
    /// The Node object of this node is not known.
    #[default]
    Unknown,
    /// The node stays in the cluster.
    Eligible,
    /// The node is being deleted, or has the autoscaler's taint for deletion.
    Deleting,
}

/// The body of `/healthz` and `/livez`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HealthzBody {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, FamilyBody>,
    /// kube-proxy has no such field. It is present only while `status` names a problem.
    #[serde(skip_serializing_if = "is_zero")]
    node_problems: usize,
    #[serde(skip_serializing_if = "is_zero")]
    stale_kinds: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
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
    /// Makes a state in which nothing is known. A change that waits longer than `patience` makes `/healthz` fail.
    pub fn new(patience: Duration) -> Self {
        Self(Arc::new(Mutex::new(Reported { patience, ..Reported::default() })))
    }

    /// Reports that everything known at the start is programmed and every interface has its programs.
    pub fn ready(&self) {
        self.reported().ready = true;
    }

    /// Returns whether [`Health::ready`] was called.
    pub fn is_ready(&self) -> bool {
        self.reported().ready
    }

    /// Reports the state of the Node object.
    pub fn node(&self, node: NodeState) {
        self.reported().node = node;
    }

    /// Reports the time since which a change waits, or that none does.
    pub fn pending(&self, since: Option<Instant>) {
        self.reported().pending_since = since;
    }

    /// Reports the time since which pins are missing and cannot be restored, or that none are. Programming changes does
    /// not clear this. `/livez` does not count it: a restart would end the links that only this process holds.
    pub fn unpinned(&self, since: Option<Instant>) {
        self.reported().unpinned_since = since;
    }

    /// Reports the number of problems of the node, and of kinds whose watch fails. They do not change the status code:
    /// neither a restart nor traffic to another node would help.
    pub fn troubles(&self, problems: usize, stale_kinds: usize) {
        self.reported().troubles = [problems, stale_kinds];
    }

    /// Reports the start of a turn of the loop. After the first one, no turn within `patience` means that the loop
    /// hangs.
    pub fn turns(&self) {
        self.reported().turned = Some(Instant::now());
    }

    /// Reports that all changes up to now are programmed.
    pub fn updated(&self) {
        let mut reported = self.reported();
        reported.updated = Some(Timestamp::now());
        reported.pending_since = None;
    }

    /// Returns whether changes are programmed in time, and the data path would outlive the process.
    pub fn is_fresh(&self) -> bool {
        self.reported().is_fresh()
    }

    /// Returns how often each path answered with each status code.
    pub fn answers(&self) -> BTreeMap<(&'static str, u16), u64> {
        self.reported().answers.clone()
    }

    fn reported(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the answer of a path, and counts its status code. `is_about_node`: it says whether the node should get
    /// traffic, for which pins and the Node object matter too, and not whether a restart of the agent would help.
    fn answer(&self, path: &'static str, is_about_node: bool) -> Response {
        let mut reported = self.reported();
        let is_fresh = if is_about_node { reported.is_fresh() } else { reported.is_alive() };
        // A Node that is not known counts as one that gets no traffic (contract 6.2).
        let is_eligible = reported.node == NodeState::Eligible;
        let is_good = is_fresh && (is_eligible || !is_about_node);
        let now = Timestamp::now().to_string();
        let updated = reported.updated.map(|at| at.to_string());
        // As in kube-proxy, a family appears once it was programmed.
        let family = |family: Family| {
            let last_updated = updated.clone()?;
            Some((family.name(), FamilyBody { last_updated, healthy: is_fresh }))
        };
        let status = Family::ALL.into_iter().filter_map(family).collect();
        let [node_problems, stale_kinds] = reported.troubles;
        let body = HealthzBody {
            // While healthy, the state is current as of now, even if no change arrived.
            last_updated: if is_good {
                now.clone()
            } else {
                updated.unwrap_or_else(|| NEVER.to_owned())
            },
            current_time: now,
            node_eligible: is_about_node.then_some(is_eligible),
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
        self.is_alive() && self.is_recent(self.unpinned_since)
    }

    /// Reports whether changes are programmed in time, and the main loop runs.
    fn is_alive(&self) -> bool {
        self.is_recent(self.pending_since) && self.is_recent(self.turned)
    }

    fn is_recent(&self, since: Option<Instant>) -> bool {
        since.is_none_or(|since| since.elapsed() < self.patience)
    }
}

/// Returns the routes. As in kube-proxy, every method gets the same answer.
pub fn router(health: Health) -> Router {
    Router::new()
        .route("/healthz", any(async |State(health): State<Health>| health.answer("healthz", true)))
        .route("/livez", any(async |State(health): State<Health>| health.answer("livez", false)))
        .route("/readyz", any(readyz))
        .fallback(elsewhere)
        .with_state(health)
}

/// Answers other paths as Go's `ServeMux` does: a redirect to the cleaned path, or 404.
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
    // The format is Go's. The path came from a request target, which cannot contain quotation marks.
    let page = format!("<a href=\"{to}\">Temporary Redirect</a>.\n\n");
    let page = if is_asked { page } else { String::new() };
    (StatusCode::TEMPORARY_REDIRECT, headers, page).into_response()
}

/// Removes empty parts, `.` and `..` from a path; a slash at the end stays.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    // Go's `ServeMux` cleans paths like this before it redirects.
    let end = if path.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    format!("/{}{end}", parts.join("/"))
}

async fn readyz(State(health): State<Health>) -> (StatusCode, &'static str) {
    if health.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: objects, map writes or attachments are not complete\n",
        )
    }
}

#[cfg(test)]
mod tests;
