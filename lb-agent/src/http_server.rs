//! One HTTP connection as Go's server serves it: keep-alive without a limit, and 400 for what Go refuses.
//!
//! Anybody may connect. A client that sends no request is left after a while, and the number of connections is bounded
//! (`Connections`), so that slow clients, or a thousand of them, keep no probe from its answer.

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
