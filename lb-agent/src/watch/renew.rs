//! Keeps the client current: rebuilds it when one of its files changes, and when the server or TLS refuses it.

use std::error::Error;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{Request, Response, StatusCode};
use futures::future::BoxFuture;
use hyper::body::Incoming;
use kube::client::Body;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tower::{BoxError, Service, ServiceExt as _};

use super::access::Access;
use super::builds::Builds;
use super::connector::Stack;
use super::secrets::without_user;
use super::server::{ClientError, Server};
use super::source_address::AddressUpdates;

/// Interval of the checks of the files.
const LOOK: Duration = Duration::from_secs(1);
/// The shortest time between two rebuilds of a refused client.
const PAUSE: Duration = Duration::from_secs(5);

/// Sends requests with the current client.
#[derive(Clone, Debug)]
pub(super) struct Renewed(Arc<CurrentClient>);

/// The client in use, shared with the task that keeps it current.
#[derive(Debug)]
struct CurrentClient {
    /// The client, or the reason why there is none yet.
    current: Mutex<Result<Stack, String>>,
    /// A request was refused.
    refused: Notify,
}

/// The inode, size and modification time of a file (seconds, nanoseconds), which show whether it was replaced.
type Stamp = Option<(u64, u64, i64, i64)>;

impl Renewed {
    /// Makes the first client and keeps it current. A wrong file is an error. The failure of a credential plugin is
    /// not: the plugin is run again.
    pub(super) async fn start(
        server: Server,
        addresses: AddressUpdates,
    ) -> Result<Self, ClientError> {
        let access = server.access().await?;
        let (files, has_plugin) = (access.files.clone(), access.has_plugin);
        let stamps = stamps(&files);
        log_route(&access);
        let builds = Builds::default();
        let current = match builds.made(&server, access, &addresses).await {
            Ok(stack) => Ok(stack),
            // A plugin may depend on the network, which may need this agent.
            Err(error) if has_plugin => {
                let error = crate::chain(&error);
                tracing::warn!(error, "no credentials yet; retrying");
                Err(error)
            }
            Err(error) => return Err(error),
        };
        let shared =
            Arc::new(CurrentClient { current: Mutex::new(current), refused: Notify::new() });
        let keeper = Keeper {
            server,
            addresses,
            builds,
            shared: Arc::downgrade(&shared),
            files,
            stamps,
            reported: None,
        };
        drop(tokio::spawn(keeper.keep()));
        Ok(Self(shared))
    }
}

impl Service<Request<Body>> for Renewed {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        let current = shared.current().clone();
        Box::pin(async move {
            let answer = match current {
                Ok(stack) => stack.oneshot(req).await,
                Err(why) => Err(format!("no credentials: {why}").into()),
            };
            // While requests wait for a plugin that hangs, a new client calls it once more.
            let is_refused = match &answer {
                Ok(answer) => answer.status() == StatusCode::UNAUTHORIZED,
                Err(error) => is_of_tls(error.as_ref()) || error.is::<ClientError>(),
            };
            // A rotated certificate or token is noticed at once and not only at the next check of the files.
            if is_refused {
                shared.refused.notify_one();
            }
            answer
        })
    }
}

impl CurrentClient {
    fn current(&self) -> std::sync::MutexGuard<'_, Result<Stack, String>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the client current as long as it is in use.
struct Keeper {
    server: Server,
    addresses: AddressUpdates,
    builds: Builds,
    shared: Weak<CurrentClient>,
    files: Vec<PathBuf>,
    stamps: Vec<Stamp>,
    /// The error that was logged last.
    reported: Option<String>,
}

impl Keeper {
    async fn keep(mut self) {
        // The time is in the past, so that the first refusal leads to a rebuild at once.
        let mut renewed = Instant::now().checked_sub(PAUSE).unwrap_or_else(Instant::now);
        let mut is_refused = false;
        while let Some(shared) = self.shared.upgrade() {
            is_refused |= timeout(LOOK, shared.refused.notified()).await.is_ok();
            let is_other = stamps(&self.files) != self.stamps;
            let is_due = renewed.elapsed() >= PAUSE && (is_refused || shared.current().is_err());
            // A strong reference during the renewal would keep the client alive after its last user.
            drop(shared);
            if is_other || is_due {
                (renewed, is_refused) = (Instant::now(), false);
                self.renew(is_other).await;
            } else if is_refused {
                sleep(LOOK).await;
            }
        }
    }

    async fn renew(&mut self, is_other: bool) {
        // A file that is replaced while it is read must look changed at the next look.
        let before = stamps(&self.files);
        let made = match self.server.access().await {
            Ok(access) => {
                let is_same = self.files == access.files;
                self.files.clone_from(&access.files);
                if is_other {
                    tracing::info!("credentials changed and were reloaded");
                    log_route(&access);
                }
                self.stamps = if is_same { before } else { stamps(&self.files) };
                self.builds.made(&self.server, access, &self.addresses).await
            }
            Err(error) => {
                // A file that is still being written is read again when it changes.
                self.stamps = before;
                Err(error)
            }
        };
        let Some(shared) = self.shared.upgrade() else { return };
        match made {
            Ok(stack) => {
                *shared.current() = Ok(stack);
                self.reported = None;
            }
            Err(error) => {
                let error = crate::chain(&error);
                if self.reported.as_ref() != Some(&error) {
                    tracing::warn!(
                        error,
                        "credentials could not be reloaded; keeping the current ones"
                    );
                }
                // A client that worked stays in use: its certificate may still be valid.
                if let Err(why) = &mut *shared.current() {
                    why.clone_from(&error);
                }
                self.reported = Some(error);
            }
        }
    }
}

/// Logs the server and the proxy in use.
fn log_route(access: &Access) {
    let server = without_user(&access.config.cluster_url.to_string());
    if let Some(proxy) = &access.proxy {
        tracing::info!(
            server,
            proxy = without_user(&proxy.uri().to_string()),
            "connecting to the API server through a proxy"
        );
    } else {
        tracing::info!(server, "connecting to the API server directly");
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
    };
    files.iter().map(stamp).collect()
}

/// Reports whether the error is one of TLS: one end rejects the certificate of the other.
fn is_of_tls(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // rustls reports its errors inside an I/O error of this kind.
        let outer = error.downcast_ref::<io::Error>();
        if outer.is_some_and(|it| it.kind() == io::ErrorKind::InvalidData) {
            return true;
        }
        // The error of a handshake is inside another I/O error, whose source is the source of the inner one.
        cause = match outer.and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_handshake_is_one_of_tls_however_deep_it_is() {
        let tls = || io::Error::new(io::ErrorKind::InvalidData, "UnknownIssuer");
        assert!(is_of_tls(&tls()));
        assert!(is_of_tls(&io::Error::other(io::Error::other(tls()))));
        assert!(!is_of_tls(&io::Error::other(io::Error::from(io::ErrorKind::ConnectionReset))));
    }
}
