//! A layer around every request that reports its result and limits the time until its response.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::http::{Method, Request, Response, Uri};
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::time::timeout;
use tower::{BoxError, Layer, Service};

/// The longest time until the head of a response. The body may take longer.
const ANSWER: Duration = Duration::from_secs(30);
/// The time limit of a list. It is longer than the server's own limit (`--request-timeout`, 60 s).
const LIST: Duration = Duration::from_secs(70);

/// Receives the results of requests, for the `rest_client_*` metrics.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A request was answered or failed.
    fn request(&self, seen: &ObservedRequest<'_>);
}

/// A request and its result.
#[derive(Clone, Copy, Debug)]
pub struct ObservedRequest<'a> {
    pub method: &'a Method,
    /// The host of the server, with its port.
    pub host: &'a str,
    /// The status code of the response; `None` without a response.
    pub code: Option<u16>,
    /// The time until the head of the response.
    pub took: Duration,
}

/// The layer that makes [`Observed`] services.
#[derive(Clone, Debug)]
pub struct Observe {
    observer: Option<Arc<dyn Observer>>,
}

impl Observe {
    /// Reports all requests to `observer`.
    pub const fn new(observer: Option<Arc<dyn Observer>>) -> Self {
        Self { observer }
    }
}

impl<S> Layer<S> for Observe {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed { inner, observe: self.clone() }
    }
}

/// A service whose requests are observed.
#[derive(Clone, Debug)]
pub struct Observed<S> {
    inner: S,
    observe: Observe,
}

impl<S, A, B> Service<Request<A>> for Observed<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, req: Request<A>) -> Self::Future {
        let asked = Asked::of(req.method(), req.uri());
        let patience = patience(req.method(), req.uri());
        let answer = self.inner.call(req);
        let observe = self.observe.clone();
        Box::pin(async move {
            // The limit ends with the head of the response: a watch lasts for minutes.
            let answer = match timeout(patience, answer).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err("no response from the server".into()),
            };
            let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            asked.report(&observe, code);
            answer.map(|answer| answer.map(Body::new))
        })
    }
}

/// Returns how long the response of a request may take.
pub(super) fn patience(method: &Method, uri: &Uri) -> Duration {
    let is_list = method == Method::GET && uri.query().is_some_and(|all| !all.contains("watch="));
    if is_list { LIST } else { ANSWER }
}

/// The facts about a request that are kept until its response.
struct Asked {
    method: Method,
    host: String,
    began: Instant,
}

impl Asked {
    fn of(method: &Method, uri: &Uri) -> Self {
        Self {
            method: method.clone(),
            host: uri.authority().map(ToString::to_string).unwrap_or_default(),
            began: Instant::now(),
        }
    }

    fn report(&self, observe: &Observe, code: Option<u16>) {
        if let Some(observer) = &observe.observer {
            let took = self.began.elapsed();
            observer.request(&ObservedRequest {
                method: &self.method,
                host: &self.host,
                code,
                took,
            });
        }
    }
}
