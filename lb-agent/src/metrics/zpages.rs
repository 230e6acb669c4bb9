//! `/statusz`, `/flagz` and `/metrics/slis`, as components of Kubernetes 1.36 serve them: version and start time,
//! flags, and results of health checks.
//!
//! The default is text for people; a client can request the documents of `config.k8s.io` by `Accept`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde_json::{Value, json};

use super::{process, text};

/// Name of the component.
const NAME: &str = "lb-agent";
/// API group of both documents.
const GROUP: &str = "config.k8s.io";
/// Served versions; the first one is current.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";

/// The data of these pages. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Pages {
    flags: Arc<BTreeMap<String, String>>,
    paths: &'static [&'static str],
    healthy: Labelled<[(&'static str, &'static str); 2], Gauge>,
    checks: Labelled<[(&'static str, &'static str); 3], Counter>,
}

/// The content of `/statusz`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Statusz {
    start_time: String,
    uptime_seconds: i64,
    go_version: &'static str,
    binary_version: &'static str,
    paths: &'static [&'static str],
}

/// Returns the routes. `paths` is what `/statusz` lists.
pub(super) fn router(
    flags: Arc<BTreeMap<String, String>>,
    paths: &'static [&'static str],
) -> Router {
    let (healthy, checks) = (Labelled::default(), Labelled::default());
    Router::new()
        .route("/healthz", any(healthz))
        .route("/healthz/ping", any(healthz))
        .route("/metrics/slis", any(slis))
        .route("/statusz", any(statusz))
        .route("/flagz", any(flagz))
        .with_state(Pages { flags, paths, healthy, checks })
}

/// Answers a ping: a process that answers is healthy.
async fn healthz(State(pages): State<Pages>) -> &'static str {
    let (name, kind) = (("name", "ping"), ("type", "healthz"));
    pages.healthy.get_or_create(&[name, kind]).set(1);
    pages.checks.get_or_create(&[name, ("status", "success"), kind]).inc();
    "ok"
}

async fn slis(State(pages): State<Pages>) -> Response {
    let mut registry = Registry::default();
    let help = "Result of a health check";
    registry.register("kubernetes_healthcheck", help, pages.healthy.clone());
    registry.register("kubernetes_healthchecks", "Results of health checks", pages.checks.clone());
    registry.register_collector(Box::new(process::StartTime));
    match text::encoded(&registry) {
        Ok(page) => ([(header::CONTENT_TYPE, text::PLAIN)], text::plain(&page)).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

async fn statusz(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    let start = Timestamp::from_second(process::start_time() as i64).unwrap_or_default();
    let up = Timestamp::now().as_second().saturating_sub(start.as_second()).max(0);
    let status = Statusz {
        start_time: start.to_string(),
        uptime_seconds: up,
        go_version: "",
        binary_version: env!("CARGO_PKG_VERSION"),
        paths: pages.paths,
    };
    let lines = [
        String::new(),
        format!("Started: {start}"),
        format!("Up: {} hr {:02} min {:02} sec", up / 3_600, up / 60 % 60, up % 60),
        format!("Binary version: {}", status.binary_version),
        format!("Paths: {}", pages.paths.join(" ")),
    ];
    answer(&headers, "Statusz", &json!(status), &lines)
}

async fn flagz(State(pages): State<Pages>, headers: HeaderMap) -> Response {
    let lines: Vec<String> =
        pages.flags.iter().map(|(name, value)| format!("{name}={value}")).collect();
    answer(&headers, "Flagz", &json!({"flags": *pages.flags}), &lines)
}

/// The form in which a client wants an answer.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Text,
    Document { version: &'static str, is_yaml: bool },
}

/// Makes an answer in the accepted form, or a 406 that names the served forms.
fn answer(headers: &HeaderMap, kind: &str, fields: &Value, lines: &[String]) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    match wanted(accept.unwrap_or_default(), kind) {
        Some(Wanted::Text) => {
            let text =
                format!("\n{NAME} {}\n{WARNING}\n{}\n", kind.to_lowercase(), lines.join("\n"));
            ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
        }
        Some(Wanted::Document { version, is_yaml }) => document(version, is_yaml, kind, fields),
        None => {
            let remedy = format!(
                "only text/plain, and application/json or application/yaml with \
                 ;as={kind};g={GROUP};v={}, are served here\n",
                VERSIONS.join(" or ;v=")
            );
            (StatusCode::NOT_ACCEPTABLE, remedy).into_response()
        }
    }
}

fn document(version: &str, is_yaml: bool, kind: &str, fields: &Value) -> Response {
    let mut object = json!({
        "kind": kind,
        "apiVersion": format!("{GROUP}/{version}"),
        "metadata": {"name": NAME},
    });
    if let (Some(object), Some(fields)) = (object.as_object_mut(), fields.as_object()) {
        object.extend(fields.clone());
    }
    // JSON is also valid YAML.
    let kind = if is_yaml { "application/yaml" } else { "application/json" };
    let mut response = ([(header::CONTENT_TYPE, kind)], format!("{object:#}\n")).into_response();
    if version != VERSIONS[0] {
        let warning =
            "299 - \"This version of the endpoint is deprecated. Please use a newer version.\"";
        drop(response.headers_mut().insert(header::WARNING, HeaderValue::from_static(warning)));
    }
    response
}

/// Returns the first accepted form that is served: a document only with its full type, text by any wildcard.
fn wanted(accept: &str, kind: &str) -> Option<Wanted> {
    // A request without the header accepts every form (RFC 9110 12.5.1).
    if accept.trim().is_empty() {
        return Some(Wanted::Text);
    }
    accept.split(',').find_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next()?.to_ascii_lowercase();
        let parameters: BTreeMap<&str, &str> = parts.filter_map(|it| it.split_once('=')).collect();
        let asked = ["as", "g", "v"].map(|name| parameters.get(name).copied());
        match (media.as_str(), asked) {
            ("text/plain" | "text/*" | "*/*", [None, None, None]) => Some(Wanted::Text),
            (
                "application/json" | "application/yaml",
                [Some(found), Some(GROUP), Some(version)],
            ) if found == kind => {
                let version = VERSIONS.into_iter().find(|known| *known == version)?;
                Some(Wanted::Document { version, is_yaml: media.ends_with("yaml") })
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_header_selects_text_or_document() {
        let json = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
        let document = |version, is_yaml| Some(Wanted::Document { version, is_yaml });
        for (accept, expected) in [
            ("", Some(Wanted::Text)),
            ("*/*", Some(Wanted::Text)),
            ("text/html, text/plain;q=0.5", Some(Wanted::Text)),
            (json, document("v1beta1", false)),
            (
                "application/yaml; as=Statusz; g=config.k8s.io; v=v1alpha1",
                document("v1alpha1", true),
            ),
            ("application/json", None),
            ("application/json;v=v2;g=config.k8s.io;as=Statusz", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("application/json;v=v9;g=config.k8s.io;as=Statusz, text/plain", Some(Wanted::Text)),
        ] {
            assert_eq!(wanted(accept, "Statusz"), expected, "{accept}");
        }
    }
}
