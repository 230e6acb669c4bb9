//! One connection, from the TLS handshake to its end.
//!
//! A connection takes one of a limited number of places. So a client that sends no request loses its place after a
//! while, and so does one that is gone without a word.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Time limit for the TLS handshake, for the first request after it, and for the head of a request.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Time after which a silent client is asked whether it is there, and then the interval of these questions.
const ASK: Duration = Duration::from_secs(30);
/// Time limit for the answer.
const ANSWER: Duration = Duration::from_secs(20);

/// The protocol by its name in ALPN.
pub(super) const HTTP_2: &[u8] = b"h2";
pub(super) const HTTP_1: &[u8] = b"http/1.1";

/// Serves a connection until it ends.
pub(super) async fn serve(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    router: Router,
    patience: Duration,
) {
    set_options(&stream);
    let Ok(Ok(stream)) = timeout(patience, acceptor.accept(stream)).await else { return };
    // A client that names no protocol speaks HTTP/1.1 (RFC 9113, section 3.3).
    let is_2 = stream.get_ref().1.alpn_protocol() == Some(HTTP_2);
    let builder = Builder::new(TokioExecutor::new());
    let mut builder = if is_2 { builder.http2_only() } else { builder.http1_only() };
    builder.http1().timer(TokioTimer::new()).header_read_timeout(patience);
    let mut http2 = builder.http2();
    http2.timer(TokioTimer::new());
    http2.keep_alive_interval(Some(ASK)).keep_alive_timeout(ANSWER);
    let has_asked = Arc::new(AtomicBool::new(false));
    let (asks, router) = (Arc::clone(&has_asked), TowerToHyperService::new(router));
    let service = service_fn(move |request| {
        asks.store(true, Ordering::Relaxed);
        router.call(request)
    });
    // hyper has no limit for the first request of HTTP/2.
    let silence = async {
        sleep(patience).await;
        if has_asked.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
    };
    tokio::select! {
        ended = builder.serve_connection(TokioIo::new(stream), service) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "connection ended");
            }
        }
        () = silence => tracing::debug!("connection without a request"),
    }
}

fn set_options(stream: &TcpStream) {
    // A watch is many small writes, and a client waits for each: Nagle's algorithm would delay them.
    drop(stream.set_nodelay(true));
    // A watch of HTTP/1.1 sends nothing while nothing changes.
    let alive = TcpKeepalive::new().with_time(ASK).with_interval(ASK / 3);
    drop(SockRef::from(stream).set_tcp_keepalive(&alive));
}

#[cfg(test)]
mod tests;
