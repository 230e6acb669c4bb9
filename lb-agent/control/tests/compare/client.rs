//! One way to ask either server.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http_body_util::BodyExt as _;
use hyper::Request;
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use lb_control::api::{Server, bootstrap, router};
use lb_control::credentials::Tokens;
use lb_control::identity::Identity;
use lb_control::service::{PortRange, Ranges};
use lb_control::store::{Retention, Store};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::ServiceExt as _;

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

/// A server to ask.
pub(crate) enum Api {
    /// The real one, by TLS.
    Real { port: u16, token: String, tls: TlsConnector },
    /// Ours, in this process.
    Ours { router: Router, _directory: TempDir },
}

impl Api {
    pub(crate) async fn ours(cidrs: &str, port: u16) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("store"), Retention::default()).unwrap();
        let nets: Vec<IpNet> = cidrs.split(',').map(|it| it.parse().unwrap()).collect();
        let ranges = Ranges::new(&nets, PortRange::default()).unwrap();
        let server = Server { store, ranges, port, tokens: Arc::new(Tokens::new(&[0; 32])) };
        bootstrap(&server).await.unwrap();
        Self::Ours { router: router(server), _directory: directory }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        accept: &str,
        body: Option<(&str, &str)>,
    ) -> Reply {
        self.try_send(method, path, accept, body).await.unwrap()
    }

    pub(crate) async fn try_send(
        &self,
        method: &str,
        path: &str,
        accept: &str,
        body: Option<(&str, &str)>,
    ) -> Result<Reply, Box<dyn std::error::Error>> {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if !accept.is_empty() {
            request = request.header("accept", accept);
        }
        if let Some((media, _)) = body {
            request = request.header("content-type", media);
        }
        let content = body.map_or_else(Body::empty, |it| Body::from(it.1.to_owned()));
        let response = match self {
            Self::Ours { router, .. } => {
                let mut request = request.body(content).unwrap();
                drop(request.extensions_mut().insert(Identity::Admin));
                router.clone().oneshot(request).await.unwrap()
            }
            Self::Real { port, token, tls } => {
                let request = request.header("authorization", format!("Bearer {token}"));
                let stream = TcpStream::connect(("127.0.0.1", *port)).await?;
                // Head and body are two writes: the second would wait for a delayed acknowledgement of the first.
                stream.set_nodelay(true)?;
                let name = ServerName::try_from("localhost").unwrap();
                let stream = tls.connect(name, stream).await?;
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
                drop(tokio::spawn(connection));
                sender.send_request(request.body(content)?).await?.map(Body::new)
            }
        };
        let code = response.status().as_u16();
        let warnings = response.headers().get_all("warning").iter();
        let warnings = warnings.map(|it| it.to_str().unwrap().to_owned()).collect();
        let read = response.into_body().collect();
        let bytes = tokio::time::timeout(Duration::from_mins(1), read).await.unwrap();
        let bytes = bytes.unwrap().to_bytes();
        let lines = serde_json::Deserializer::from_slice(&bytes).into_iter::<Value>();
        let mut values: Vec<Value> = lines.map_while(Result::ok).collect();
        let body = match (values.pop(), values.is_empty()) {
            (Some(only), true) => only,
            (Some(last), false) => values.into_iter().chain([last]).collect(),
            (None, _) => String::from_utf8_lossy(&bytes).into_owned().into(),
        };
        Ok(Reply { code, body, warnings })
    }

    pub(crate) async fn revision(&self) -> String {
        let list = self.send("GET", "/api/v1/services", "", None).await.body;
        list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    }

    /// All that happened to Services since a revision.
    pub(crate) async fn events(&self, since: String) -> Vec<Value> {
        let path = format!(
            "/api/v1/namespaces/default/services?watch=1&timeoutSeconds=2&resourceVersion={since}"
        );
        let body = self.send("GET", &path, "", None).await.body;
        body.as_array().map_or_else(|| vec![body.clone()], Clone::clone)
    }
}
