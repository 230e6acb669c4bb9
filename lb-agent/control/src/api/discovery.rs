//! Discovery: the served resources, for clients that read them before their first request.

use hyper::header;
use hyper::http::request::Parts;
use serde_json::{Value, json};

use super::answer::Answer;
use super::failure::Failure;
use super::form::{Form, Shape};
use super::openapi;
use crate::kind::{KINDS, Kind};

const JSON: Form = Form { shape: Shape::Whole, is_yaml: false };
/// The release of Kubernetes whose behaviour this API follows.
const VERSION: &str = "v1.36.3";

/// Answers requests for health and version, which need no identity.
pub(crate) fn open(parts: &Parts) -> Option<Answer> {
    match parts.uri.path() {
        "/healthz" | "/livez" | "/readyz" => Some(Answer::text("ok")),
        "/version" => {
            let version = json!({
                "major": "1", "minor": "36", "gitVersion": format!("{VERSION}+lb-agent"),
                "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
                "goVersion": "none", "compiler": "rustc", "platform": "linux/amd64",
            });
            Some(Answer::value(200, &version, JSON))
        }
        _ => None,
    }
}

const GROUPS: [&str; 5] = [
    "authorization.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "networking.k8s.io",
];

/// Answers requests for groups, their resources and their fields.
pub(crate) fn discover(parts: &Parts) -> Result<Option<Answer>, Failure> {
    let path = parts.uri.path().trim_end_matches('/');
    let words: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let value = match words.as_slice() {
        ["api" | "apis"] if is_aggregated(parts) => {
            let list = aggregated(path == "/api");
            let media = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            return Ok(Some(Answer { media, ..Answer::json(200, list.to_string()) }));
        }
        ["api"] => json!({
            "kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
        }),
        ["apis"] => {
            let groups: Vec<Value> = GROUPS.iter().map(|it| group(it)).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        ["apis", name] if GROUPS.contains(name) => {
            let mut group = group(name);
            if let Some(fields) = group.as_object_mut() {
                drop(fields.insert("kind".into(), "APIGroup".into()));
                drop(fields.insert("apiVersion".into(), "v1".into()));
            }
            group
        }
        ["api", "v1"] => resources(""),
        ["apis", name, "v1"] if GROUPS.contains(name) => resources(name),
        ["openapi", "v3"] => openapi::index(),
        ["openapi", "v3", "api", "v1"] => openapi::document(""),
        ["openapi", "v3", "apis", name, "v1"] if GROUPS.contains(name) => openapi::document(name),
        _ => return Ok(None),
    };
    // The method is checked after the path: an unknown path is 404 for every method.
    if parts.method != hyper::Method::GET && parts.method != hyper::Method::HEAD {
        return Err(Failure::method_not_allowed());
    }
    Ok(Some(Answer::value(200, &value, JSON)))
}

fn is_aggregated(parts: &Parts) -> bool {
    let accept = parts.headers.get(header::ACCEPT).and_then(|it| it.to_str().ok());
    let parts = accept.unwrap_or_default().split(',');
    let has = |it: &str, part: &str| it.split(';').any(|it| it.trim() == part);
    parts.into_iter().any(|it| has(it, "as=APIGroupDiscoveryList") && has(it, "v=v2"))
}

fn group(name: &str) -> Value {
    let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
    json!({"name": name, "versions": [version], "preferredVersion": version})
}

fn verbs(kind: &Kind) -> Vec<&'static str> {
    let all = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let is_served = |it: &&str| match *it {
        "get" | "list" | "watch" => true,
        "deletecollection" => kind.has_collection_delete(),
        _ => kind.is_writable,
    };
    all.into_iter().filter(is_served).collect()
}

fn of_group(group: &str) -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(move |it| it.group == group)
}

/// A resource that is only evaluated and never stored.
const REVIEWS: (&str, &str) = ("selfsubjectaccessreviews", "SelfSubjectAccessReview");

fn resources(group: &str) -> Value {
    let mut all: Vec<Value> = Vec::new();
    for kind in of_group(group) {
        let mut one = json!({
            "name": kind.resource, "singularName": kind.kind.to_lowercase(), "kind": kind.kind,
            "namespaced": kind.is_namespaced, "verbs": verbs(kind),
        });
        if let Some(fields) = one.as_object_mut() {
            if !kind.short.is_empty() {
                drop(fields.insert("shortNames".into(), kind.short.into()));
            }
            if !kind.categories.is_empty() {
                drop(fields.insert("categories".into(), kind.categories.into()));
            }
        }
        all.push(one);
        // Subresources are listed as resources of their own, with a slash in the name.
        if kind.has_status && kind.is_writable {
            all.push(json!({
                "name": format!("{}/status", kind.resource), "singularName": "", "kind": kind.kind,
                "namespaced": kind.is_namespaced, "verbs": ["get", "patch", "update"],
            }));
        }
    }
    if group == "authorization.k8s.io" {
        let (name, kind) = REVIEWS;
        all.push(json!({
            "name": name, "singularName": kind.to_lowercase(), "kind": kind,
            "namespaced": false, "verbs": ["create"],
        }));
    }
    let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": all})
}

fn aggregated(is_core: bool) -> Value {
    let groups = if is_core { &[""][..] } else { &GROUPS[..] };
    let items: Vec<Value> = groups
        .iter()
        .map(|group| {
            let resources: Vec<Value> = discovered(group);
            json!({
                "metadata": {"name": group, "creationTimestamp": null},
                "versions": [{"version": "v1", "freshness": "Current", "resources": resources}],
            })
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

fn discovered(group: &str) -> Vec<Value> {
    let response = |kind: &str| json!({"group": group, "version": "v1", "kind": kind});
    let scope = |is_namespaced: bool| if is_namespaced { "Namespaced" } else { "Cluster" };
    if group == "authorization.k8s.io" {
        let (name, kind) = REVIEWS;
        return vec![json!({
            "resource": name, "responseKind": response(kind), "scope": scope(false),
            "singularResource": kind.to_lowercase(), "verbs": ["create"],
        })];
    }
    of_group(group)
        .map(|kind| {
            let mut one = json!({
                "resource": kind.resource, "responseKind": response(kind.kind),
                "scope": scope(kind.is_namespaced), "singularResource": kind.kind.to_lowercase(),
                "verbs": verbs(kind), "shortNames": kind.short, "categories": kind.categories,
            });
            if let (true, Some(fields)) = (kind.has_status && kind.is_writable, one.as_object_mut())
            {
                let status = json!([{"subresource": "status", "responseKind": response(kind.kind),
                    "verbs": ["get", "patch", "update"]}]);
                drop(fields.insert("subresources".into(), status));
            }
            one
        })
        .collect()
}
