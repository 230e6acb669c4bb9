//! One HTTP connection, served as Go's server does: keep-alive without a limit on requests, and 400 for requests that
//! Go refuses.
//!
//! Any host may connect. A client that sends no request is dropped after a while, and the number of connections is
//! bounded (`Connections`). So not even a thousand slow clients keep a probe from its answer.

pub(crate) mod connections;
mod refusal;

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tracing::trace;

use self::connections::Progress;

/// Time limit for the first request.
const FIRST: Duration = Duration::from_secs(15);
/// Time limit for each later request. Go has none; this is longer than the interval of any prober.
const NEXT: Duration = Duration::from_mins(10);
/// Largest size of a request's head, in bytes: the smallest that hyper allows.
const HEAD_BYTES: usize = 8 * 1_024;

/// Serves a connection until it ends, with responses from `answer`, and records its progress.
pub(crate) async fn serve<F: Future<Output = Response<Body>>>(
    stream: TcpStream,
    progress: Arc<Progress>,
    answer: impl Fn(Request<Incoming>) -> F,
) {
    let service = service_fn(|request| {
        // The request is recorded before it is judged: a refused one is progress, too.
        progress.asks();
        let answer = match refusal::of(&request) {
            None => Ok(answer(request)),
            Some(refused) => Err(refused),
        };
        let progress = &progress;
        async move {
            let response = match answer {
                Ok(answer) => answer.await,
                Err(refused) => refused,
            };
            progress.is_answered();
            Ok::<_, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(NEXT)
        .max_buf_size(HEAD_BYTES)
        // Go writes the names of headers in this form, and a prober may compare them as they are.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    // hyper's own timer covers the head of each request; it cannot have another limit for the first one.
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
