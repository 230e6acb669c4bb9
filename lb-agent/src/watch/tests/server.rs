//! A server with scripted responses.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, Uri};
use futures::future::{BoxFuture, FutureExt as _};
use futures::{StreamExt as _, stream};
use kube::Client;
use kube::client::ClientBuilder;
use serde_json::{Value, json};
use tower::Service;

use crate::watch::observe::Observe;

pub(super) struct Asked {
    uri: Uri,
    count: usize,
}

impl Asked {
    pub(super) fn resource(&self) -> &str {
        self.uri.path().rsplit('/').next().unwrap_or_default()
    }

    /// How many times the resource was requested before, apart from probes.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Reports whether the query contains this.
    pub(super) fn has(&self, text: &str) -> bool {
        self.uri.query().unwrap_or_default().contains(text)
    }

    /// Reports whether the request is a watch.
    pub(super) fn watches(&self) -> bool {
        self.has("watch=true")
    }

    /// Reports whether the request only reads the store's resource version.
    pub(super) fn probes(&self) -> bool {
        is_probe(&self.uri)
    }

    /// Reports whether the request is a watch that begins with the list.
    pub(super) fn streams(&self) -> bool {
        self.has("sendInitialEvents=true")
    }
}

fn is_probe(uri: &Uri) -> bool {
    uri.query().unwrap_or_default().split('&').any(|part| part == "limit=1")
}

pub(super) enum Answer {
    /// The server never responds.
    Hang,
    /// No connection.
    Broken,
    Failure(u16, String),
    /// A whole body.
    Whole(String),
    /// Lines, and then nothing more.
    Stream(Vec<String>),
    /// Lines, and then the end.
    Ended(Vec<String>),
    /// A body that ends early, after these lines.
    Cut(Vec<String>),
    /// A failure that requests a pause of this many seconds.
    Busy(u16, u32),
    /// A page for people, with status 200.
    Page(String),
    /// A body in pieces, with pauses before each.
    Slow(Vec<String>, Duration),
}

impl Answer {
    /// Makes a failure as the API server words it.
    pub(super) fn status(code: u16, reason: &str, message: &str) -> Self {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure",
            "code": code, "reason": reason, "message": message,
        });
        Self::Failure(code, status.to_string())
    }

    /// Makes a list of objects with these names.
    pub(super) fn list(kind: &str, names: &[&str], version: u32) -> Self {
        let items: Vec<_> = names.iter().map(|name| object(kind, name, version)).collect();
        let list = json!({
            "apiVersion": api_version(kind), "kind": format!("{kind}List"),
            "metadata": { "resourceVersion": version.to_string() }, "items": items,
        });
        Self::Whole(list.to_string())
    }

    /// Makes events of type, kind, name, version. `END` ends the initial list, `GONE` is an expired position.
    pub(super) fn stream(events: &[(&str, &str, &str, u32)]) -> Self {
        let line = |(event, kind, name, version): &(&str, &str, &str, u32)| {
            let line = match *event {
                "END" => json!({ "type": "BOOKMARK", "object": {
                    "apiVersion": api_version(kind), "kind": kind,
                    "metadata": {
                        "resourceVersion": version.to_string(),
                        "annotations": { "k8s.io/initial-events-end": "true" },
                    },
                }}),
                "GONE" => json!({ "type": "ERROR", "object": {
                    "apiVersion": "v1", "kind": "Status", "status": "Failure",
                    "code": 410, "reason": "Expired", "message": "too old resource version",
                }}),
                other => json!({ "type": other, "object": object(kind, name, *version) }),
            };
            line.to_string()
        };
        Self::Stream(events.iter().map(line).collect())
    }
}

fn api_version(kind: &str) -> &'static str {
    if kind == "EndpointSlice" { "discovery.k8s.io/v1" } else { "v1" }
}

pub(super) fn object(kind: &str, name: &str, version: u32) -> Value {
    let mut object = json!({
        "apiVersion": api_version(kind), "kind": kind,
        "metadata": {
            "namespace": "default", "name": name, "resourceVersion": version.to_string(),
        },
    });
    if kind == "EndpointSlice" {
        object["addressType"] = json!("IPv4");
        object["endpoints"] = json!([]);
    }
    object
}

/// Responds by a function of the request, and records the requests.
#[derive(Clone)]
pub(super) struct Script {
    answer: Arc<dyn Fn(&Asked) -> Answer + Send + Sync>,
    asked: Arc<Mutex<Vec<Uri>>>,
}

impl Script {
    /// Starts a server with these responses.
    pub(super) fn new(answer: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), asked: Arc::default() }
    }

    /// Makes a client of it.
    pub(super) fn client(&self) -> Client {
        ClientBuilder::new(self.clone(), "default").with_layer(&Observe::new(None)).build()
    }

    /// Returns the requests so far in readable form, with the parts of the query in order.
    pub(super) fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().expect("no panic");
        let readable = |uri: &Uri| {
            let query = uri.query().unwrap_or_default();
            let query = query.replace("%21", "!").replace("%3D", "=").replace("%2F", "/");
            let query = query.replace("%2C", ",");
            let mut parts: Vec<_> = query.split('&').filter(|part| !part.is_empty()).collect();
            parts.sort_unstable();
            format!("{}?{}", uri.path(), parts.join("&"))
        };
        asked.iter().map(readable).collect()
    }
}

impl<B: Send + 'static> Service<Request<B>> for Script {
    type Response = Response<Body>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Response<Body>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let mut asked = self.asked.lock().expect("no panic");
        let mut counts = BTreeMap::new();
        for uri in asked.iter().filter(|uri| !is_probe(uri)) {
            *counts.entry(uri.path().to_owned()).or_insert(0) += 1;
        }
        let count = counts.get(req.uri().path()).copied().unwrap_or(0);
        asked.push(req.uri().clone());
        drop(asked);
        let answer = (self.answer)(&Asked { uri: req.uri().clone(), count });
        async move {
            match answer {
                Answer::Hang => futures::future::pending().await,
                Answer::Broken => Err(io::ErrorKind::ConnectionRefused.into()),
                Answer::Failure(code, body) => {
                    Ok(Response::builder().status(code).body(Body::from(body)).expect("a response"))
                }
                Answer::Ended(lines) => Ok(Response::new(Body::from(lines.join("\n") + "\n"))),
                Answer::Cut(lines) => {
                    let lines = lines.into_iter().map(|line| Ok(line + "\n"));
                    let cut = [Err(io::Error::from(io::ErrorKind::ConnectionReset))];
                    Ok(Response::new(Body::from_stream(stream::iter(lines.chain(cut)))))
                }
                Answer::Busy(code, seconds) => Ok(Response::builder()
                    .status(code)
                    .header("Retry-After", seconds.to_string())
                    .body(Body::from("later"))
                    .expect("a response")),
                Answer::Page(text) => Ok(Response::builder()
                    .header("Content-Type", "text/html; charset=utf-8")
                    .body(Body::from(text))
                    .expect("a response")),
                Answer::Slow(pieces, pause) => {
                    let pieces = stream::iter(pieces).then(move |piece| async move {
                        tokio::time::sleep(pause).await;
                        Ok::<_, io::Error>(piece)
                    });
                    Ok(Response::new(Body::from_stream(pieces)))
                }
                Answer::Whole(body) => Ok(Response::new(Body::from(body))),
                Answer::Stream(lines) => {
                    let lines = lines.into_iter().map(|line| Ok::<_, io::Error>(line + "\n"));
                    let lines = stream::iter(lines).chain(stream::pending());
                    Ok(Response::new(Body::from_stream(lines)))
                }
            }
        }
        .boxed()
    }
}
