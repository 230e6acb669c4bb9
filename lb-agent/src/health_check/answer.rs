//! One answer over one connection: every path and method gets the same, in bounded time and memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::plan::{Family, ServiceName};
use crate::translate::LocalReady;

/// Longest time from accepting a connection to its end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest head of a request.
const HEAD: usize = 8 * 1_024;
/// What is read of a request after its head, so that closing does not reset the connection.
const REST: usize = 64 * 1_024;

/// What is answered for one Service.
#[derive(Debug)]
pub(super) struct Answerer {
    pub(super) service: ServiceName,
    pub(super) endpoints: Endpoints,
    pub(super) is_healthy: Arc<AtomicBool>,
}

/// Ready endpoints on this node, by the family of the address that is asked.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    v4: AtomicU32,
    v6: AtomicU32,
}

impl Endpoints {
    pub(super) fn set(&self, LocalReady { v4, v6 }: LocalReady) {
        self.v4.store(v4, Ordering::Relaxed);
        self.v6.store(v6, Ordering::Relaxed);
    }

    fn of(&self, family: Family) -> u32 {
        let count = match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        count.load(Ordering::Relaxed)
    }
}

/// As kube-proxy spells it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
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
    /// The whole response; its body is left out for HEAD.
    fn response(&self, asked_by: Family, with_body: bool) -> String {
        let local_endpoints = self.endpoints.of(asked_by);
        let service_proxy_healthy = self.is_healthy.load(Ordering::Relaxed);
        let service = Name { namespace: &self.service.namespace, name: &self.service.name };
        let body = Body { service, local_endpoints, service_proxy_healthy };
        let body = indented(&body);
        let status = if local_endpoints > 0 && service_proxy_healthy {
            "200 OK"
        } else {
            "503 Service Unavailable"
        };
        let mut text = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n\
             X-Content-Type-Options: nosniff\r\n\
             X-Load-Balancing-Endpoint-Weight: {local_endpoints}\r\n\
             Connection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        text.push_str(&["Date: ", &date(), "\r\n\r\n"].concat());
        if with_body {
            text.push_str(&body);
        }
        text
    }
}

/// A document as kube-proxy writes it by hand: a tab for each level, no newline at its end.
fn indented(body: &Body<'_>) -> String {
    let mut text = Vec::new();
    let style = PrettyFormatter::with_indent(b"\t");
    let written = body.serialize(&mut Serializer::with_formatter(&mut text, style));
    written.ok().and_then(|()| String::from_utf8(text).ok()).unwrap_or_default()
}

fn date() -> String {
    jiff::Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// Reads a request and answers it. Whoever takes too long is left alone.
pub(super) async fn answer(mut stream: TcpStream, answerer: &Answerer) {
    let exchange = async {
        // A socket of both families has addresses of IPv4 in their mapped form.
        let asked_by = Family::of(stream.local_addr()?.ip().to_canonical());
        let head = head(&mut stream).await?;
        let text = match head.as_deref().map(method) {
            Some(Some(method)) => answerer.response(asked_by, method != b"HEAD"),
            Some(None) | None => BAD.to_owned(),
        };
        stream.write_all(text.as_bytes()).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1_024];
        let mut left = REST;
        loop {
            match stream.read(&mut rest).await? {
                0 => return Ok::<(), std::io::Error>(()),
                read if read < left => left -= read,
                _ => return Ok(()),
            }
        }
    };
    match timeout(PATIENCE, exchange).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::trace!(%error, "health check broke off"),
        Err(_) => tracing::trace!("health check took too long"),
    }
}

const BAD: &str = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// The head of a request; `None` when it never ends.
async fn head(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut head = Vec::with_capacity(1_024);
    loop {
        if head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
            return Ok(Some(head));
        }
        if head.len() >= HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(None);
        }
    }
}

/// The method of a request that speaks HTTP/1.
fn method(head: &[u8]) -> Option<&[u8]> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = line.split(|byte| *byte == b' ');
    let (method, _, version) = (words.next()?, words.next()?, words.next()?);
    let is_word = !method.is_empty() && method.iter().all(u8::is_ascii_uppercase);
    (is_word && version.starts_with(b"HTTP/1.") && words.next().is_none()).then_some(method)
}
