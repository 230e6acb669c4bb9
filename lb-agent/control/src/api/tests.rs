//! The API through its requests and responses, without a socket.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt as _;

use super::*;
use crate::credentials::Tokens;
use crate::identity::Identity;
use crate::service::{PortRange, Ranges};
use crate::store::{Retention, Store};

mod first;
mod namespaces;
mod patches;
mod slices;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// An API with its first objects.
struct Api {
    server: Server,
    _directory: TempDir,
}

impl Api {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store"), Retention::default()).unwrap();
        let ranges = Ranges::new(&["10.96.0.0/16".parse().unwrap()], PortRange::default()).unwrap();
        let server = Server { store, ranges, port: 6443, tokens: Arc::new(Tokens::new(&[0; 32])) };
        bootstrap(&server).await.unwrap();
        Self { server, _directory: directory }
    }

    /// Sends a request as the admin; returns the status code and the body.
    async fn send(&self, method: &str, path: &str, media: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { Body::empty() } else { body.to_string().into() };
        let request = Request::builder().method(method).uri(path).header("content-type", media);
        let request = request.extension(Identity::Admin).body(body).unwrap();
        let answer = router(self.server.clone()).oneshot(request).await.unwrap();
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap())
    }

    /// Sends an object, which must be accepted; returns the answer.
    async fn put(&self, method: &str, path: &str, body: &Value) -> Value {
        let (code, answer) = self.send(method, path, "application/json", body).await;
        assert!(code < 300, "{method} {path}: {code} {answer}");
        answer
    }

    /// Sends a merge patch, which must be accepted; returns the answer.
    async fn patch(&self, path: &str, body: &Value) -> Value {
        let (code, answer) = self.send("PATCH", path, "application/merge-patch+json", body).await;
        assert_eq!(code, 200, "{path}: {answer}");
        answer
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", path, "", &Value::Null).await
    }

    async fn delete(&self, path: &str) -> (u16, Value) {
        self.send("DELETE", path, "application/json", &Value::Null).await
    }
}
