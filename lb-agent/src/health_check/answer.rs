//! The answer for one Service: every path and method gets the same.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Response, StatusCode};
use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::health::Health;
use crate::http_server::connections::Progress;
use crate::http_server::serve;
use crate::plan::{Family, ServiceName};
use crate::translate::LocalReady;

/// Header with the number of local endpoints, for load balancers that weigh nodes.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The source of answers for one Service.
#[derive(Debug)]
pub(super) struct Answerer {
    pub(super) service: ServiceName,
    pub(super) endpoints: Endpoints,
    pub(super) health: Health,
    /// Closed when the Service gives up its port.
    pub(super) is_open: watch::Receiver<()>,
}

/// Ready endpoints on this node, by the family of the address that a load balancer connects to.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    v4: AtomicU32,
    v6: AtomicU32,
}

impl Endpoints {
    pub(super) fn set(&self, LocalReady { v4, v6 }: LocalReady) {
        // No probe reads both numbers, so they need no order.
        self.v4.store(v4, Ordering::Relaxed);
        self.v6.store(v6, Ordering::Relaxed);
    }

    pub(super) fn lower(&self, LocalReady { v4, v6 }: LocalReady) {
        self.v4.fetch_min(v4, Ordering::Relaxed);
        self.v6.fetch_min(v6, Ordering::Relaxed);
    }

    pub(super) fn of(&self, family: Family) -> u32 {
        let count = match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        count.load(Ordering::Relaxed)
    }
}

/// The body of an answer, with kube-proxy's field names.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceHealthBody<'a> {
    service: Name<'a>,
    local_endpoints: u32,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct Name<'a> {
    namespace: &'a str,
    name: &'a str,
}

impl Answerer {
    fn response(&self, asked_by: Family) -> Response<Body> {
        let local_endpoints = self.endpoints.of(asked_by);
        let service_proxy_healthy = self.health.is_fresh();
        let service = Name { namespace: &self.service.namespace, name: &self.service.name };
        let body = ServiceHealthBody { service, local_endpoints, service_proxy_healthy };
        let mut response = Response::new(Body::from(indented(&body)));
        // As kube-proxy answers: the load balancer must not send to a node that has no endpoint or a stale proxy.
        if local_endpoints == 0 || !service_proxy_healthy {
            *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        }
        response.headers_mut().extend([
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (WEIGHT, HeaderValue::from(local_endpoints)),
        ]);
        response
    }
}

/// Formats the body as kube-proxy does: a tab for each level, and no newline at the end.
fn indented(body: &ServiceHealthBody<'_>) -> String {
    let mut text = Vec::new();
    let style = PrettyFormatter::with_indent(b"\t");
    let written = body.serialize(&mut Serializer::with_formatter(&mut text, style));
    written.ok().and_then(|()| String::from_utf8(text).ok()).unwrap_or_default()
}

/// Answers all requests on a connection, until the Service gives up its port.
pub(super) async fn answer(stream: TcpStream, answerer: Arc<Answerer>, progress: Arc<Progress>) {
    // On a dual-stack socket, IPv4 addresses are in their v4-mapped form.
    let Ok(own) = stream.local_addr() else { return };
    let asked_by = Family::of(own.ip().to_canonical());
    let mut is_open = answerer.is_open.clone();
    tokio::select! {
        () = serve(stream, progress, |_request| ready(answerer.response(asked_by))) => {}
        // No value is ever sent.
        _closed = is_open.changed() => {}
    }
}
