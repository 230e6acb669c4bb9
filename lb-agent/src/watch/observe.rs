//! A layer around every request: sees how it went, and does not let it hang.
//!
//! A watch that is answered means that changes are seen again, even when none come. A watch on
//! which not even a bookmark comes for long is ended, so that it is asked for anew: the server may
//! have vanished without a word.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::http::{Method, Request, Response, Uri};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt as _, stream};
use tokio::time::timeout;
use tower::{BoxError, Layer, Service};

use crate::snapshot::{Kind, ViewHealth};

/// Longest time until a request is answered. Its body may take longer.
const ANSWER: Duration = Duration::from_secs(30);
/// Longest silence on a watch; servers send a bookmark about each minute.
const SILENCE: Duration = Duration::from_secs(90);

/// Wants to know of requests, for the `rest_client_*` metrics.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A request was answered, or failed.
    fn request(&self, seen: &Seen<'_>);
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Method.
    pub method: &'a Method,
    /// Host of the server, with its port.
    pub host: &'a str,
    /// Status code of the answer, `None` when there was none.
    pub code: Option<u16>,
    /// Time until the head of the answer.
    pub took: Duration,
}

/// Makes [`Observed`] services.
#[derive(Clone, Debug)]
pub struct Observe {
    view: ViewHealth,
    observer: Option<Arc<dyn Observer>>,
}

impl Observe {
    /// Tells `view` of watches and `observer` of all requests.
    pub const fn new(view: ViewHealth, observer: Option<Arc<dyn Observer>>) -> Self {
        Self { view, observer }
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
        let answer = self.inner.call(req);
        let observe = self.observe.clone();
        Box::pin(async move {
            let answer = match timeout(ANSWER, answer).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err("the server does not answer".into()),
            };
            let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            asked.tell(&observe, code);
            let watch = asked.watched.is_some();
            answer.map(|answer| answer.map(Body::new).map(|b| if watch { quiet(b) } else { b }))
        })
    }
}

/// What is remembered of a request.
struct Asked {
    method: Method,
    host: String,
    began: Instant,
    /// The kind that is watched, if this is a watch.
    watched: Option<Kind>,
}

impl Asked {
    fn of(method: &Method, uri: &Uri) -> Self {
        let resource = uri.path().rsplit('/').next().unwrap_or_default();
        let watch = uri.query().unwrap_or_default().split('&').any(|part| part == "watch=true");
        let kind = Kind::ALL.into_iter().find(|kind| kind.resource() == resource);
        Self {
            method: method.clone(),
            host: uri.authority().map(ToString::to_string).unwrap_or_default(),
            began: Instant::now(),
            watched: kind.filter(|_| watch),
        }
    }

    fn tell(&self, observe: &Observe, code: Option<u16>) {
        if let (Some(kind), Some(200..=299)) = (self.watched, code) {
            observe.view.fresh(kind);
        }
        if let Some(observer) = &observe.observer {
            let took = self.began.elapsed();
            observer.request(&Seen { method: &self.method, host: &self.host, code, took });
        }
    }
}

/// A body that ends when it has been silent for too long.
fn quiet(body: Body) -> Body {
    Body::from_stream(stream::unfold(body.into_data_stream(), |mut data| async {
        let next = timeout(SILENCE, data.next()).await.ok().flatten()?;
        Some((next, data))
    }))
}
