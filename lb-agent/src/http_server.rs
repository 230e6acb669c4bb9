//! One HTTP connection as Go's server serves it: keep-alive without a limit, and 400 for a request without `Host`.
//!
//! Anybody may connect. A client that sends no request is left after a while, and the number of connections is bounded
//! (`Connections`), so that slow clients, or a thousand of them, keep no probe from its answer.

pub(crate) mod connections;

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tracing::trace;

use self::connections::Progress;

/// The first request must come within this.
const FIRST: Duration = Duration::from_secs(15);
/// Each one after it within this. Go waits without an end; longer than any prober's period is as good.
const NEXT: Duration = Duration::from_mins(10);
/// Bytes of a head at most: as little as hyper takes.
const HEAD_BYTES: usize = 8 * 1_024;

/// Serves a connection to its end with `answer`, and notes how far it is.
pub(crate) async fn serve<F: Future<Output = Response<Body>>>(
    stream: TcpStream,
    progress: Arc<Progress>,
    answer: impl Fn(Request<Incoming>) -> F,
) {
    let service = service_fn(|request| {
        progress.asks();
        let answer = (!is_without_host(&request)).then(|| answer(request));
        let progress = &progress;
        async move {
            let response = match answer {
                Some(answer) => answer.await,
                None => missing_host(),
            };
            progress.is_answered();
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(NEXT)
        .max_buf_size(HEAD_BYTES)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    let silence = async {
        sleep(FIRST).await;
        if progress.has_asked() {
            pending::<()>().await;
        }
    };
    tokio::select! {
        ended = connection => if let Err(error) = ended {
            trace!(%error, "connection closed early");
        },
        () = silence => trace!("connection without a request"),
    }
}

/// RFC 9112 3.2: a server must refuse it.
fn is_without_host(request: &Request<Incoming>) -> bool {
    request.version() == Version::HTTP_11 && !request.headers().contains_key(HOST)
}

/// As Go's `net/http` says it.
fn missing_host() -> Response<Body> {
    let mut response = Response::new(Body::from("400 Bad Request: missing required Host header"));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response.headers_mut().extend([
        (CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (CONNECTION, HeaderValue::from_static("close")),
    ]);
    response
}
