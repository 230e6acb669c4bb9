//! The HTTP client. Connections end when the server stops responding and when their source address is gone. Proxies are
//! supported.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, Request, Response, Uri};
use futures::future::BoxFuture;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::client::proxy::matcher::Intercept;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use tokio::time::timeout;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, service_fn};

use super::access::Access;
use super::observe::patience;
use super::secrets::{program, without_secrets};
use super::source_address::{AddressUpdates, Sourced};

/// The HTTP client with all its layers, which sends one request per call.
pub(super) type Stack = BoxCloneSyncService<Request<Body>, Response<Incoming>, BoxError>;

/// The longest time to make a TCP connection. Two SYNs fit. The third one would leave a second later, and would add to
/// the pause after this attempt if an outage ends in between. All addresses of a name share this time.
const CONNECT: Duration = Duration::from_secs(2);
/// The longest time until a connection can be used: besides TCP it has the handshakes of a proxy and of TLS.
const SETUP: Duration = Duration::from_secs(10);
/// Time without data after which the kernel probes a connection.
const IDLE: Duration = Duration::from_secs(2);
/// Interval between probes of a silent connection.
const AGAIN: Duration = Duration::from_secs(1);
/// Time without an acknowledgement after which the kernel ends a connection. The number of probes has no effect beside
/// this user timeout (`tcp_keepalive_timer` in `net/ipv4/tcp_timer.c`).
const UNANSWERED: Duration = Duration::from_secs(4);
/// Time after which an unused connection gets no further request. A connection that leads nowhere may look usable for
/// as long as `UNANSWERED`; a request on it would fail only that much later, because unacknowledged data ends the
/// probes and starts the user timeout again (`tcp_keepalive_timer`).
pub(super) const REUSED: Duration = Duration::from_secs(1);

/// Returns the client for this access, whose errors contain no secret. Blocks while it runs a credential plugin.
pub(super) fn stack(access: &Access, addresses: AddressUpdates) -> Result<Stack, BoxError> {
    let program: Arc<str> = program(&access.config.auth_info).into();
    let built = build(access, addresses);
    let stack = built.map_err(|error| without_secrets(error.into(), &program))?;
    // A request may run the plugin again.
    Ok(BoxCloneSyncService::new(stack.map_err(move |error| without_secrets(error, &program))))
}

fn build(access: &Access, addresses: AddressUpdates) -> Result<Stack, kube::Error> {
    let mut connector = HttpConnector::new();
    // The TLS layer on top passes addresses with the scheme `https`.
    connector.enforce_http(false);
    // Go's connections have this by default, so client-go's have it as well. Without it a small request may wait for
    // the acknowledgement of the one before.
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_keepalive(Some(IDLE));
    connector.set_keepalive_interval(Some(AGAIN));
    connector.set_tcp_user_timeout(Some(UNANSWERED));
    // Below proxies and TLS, where the TCP connection with its source address is.
    let connector = connector.map_response(move |stream| Sourced::new(stream, addresses));
    let Some(proxy) = &access.proxy else { return by(access, connector) };
    let uri = proxy.uri().clone();
    match proxy.uri().scheme_str() {
        Some("socks5" | "socks5h") => {
            let socks = SocksV5::new(uri, connector);
            by(
                access,
                match proxy.raw_auth() {
                    Some((user, word)) => socks.with_auth(user.to_owned(), word.to_owned()),
                    None => socks,
                },
            )
        }
        Some("https") => {
            let secure = access.config.rustls_https_connector_with_connector(connector)?;
            by(access, tunnel(proxy, Tunnel::new(uri, secure)))
        }
        _ => by(access, tunnel(proxy, Tunnel::new(uri, connector))),
    }
}

fn tunnel<C>(proxy: &Intercept, tunnel: Tunnel<C>) -> Tunnel<C> {
    match proxy.basic_auth() {
        Some(auth) => tunnel.with_auth(HeaderValue::clone(auth)),
        None => tunnel,
    }
}

fn by<C>(access: &Access, connector: C) -> Result<Stack, kube::Error>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: std::error::Error + Send + Sync + 'static,
{
    let config = &access.config;
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let connector = connector.map_future(|connection| limited(SETUP, connection));
    let client = Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(REUSED)
        .build::<_, Body>(connector);
    // The caller has the same limit, but a request with a credential plugin may go on without its caller.
    let client = service_fn(move |req: Request<Body>| {
        limited(patience(req.method(), req.uri()), client.request(req))
    });
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .service(client);
    Ok(BoxCloneSyncService::new(service))
}

/// Returns the result, or an error if it takes longer than `limit`.
fn limited<T: 'static, E: Into<BoxError> + 'static>(
    limit: Duration,
    result: impl Future<Output = Result<T, E>> + Send + 'static,
) -> BoxFuture<'static, Result<T, BoxError>> {
    Box::pin(async move {
        match timeout(limit, result).await {
            Ok(result) => result.map_err(Into::into),
            Err(_) => Err(format!("no answer within {limit:?}").into()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::pace::Pace;

    /// The longest time that a change may take after an outage; kube-proxy takes three seconds.
    const BOUND: Duration = Duration::from_secs(5);

    #[test]
    fn recovered_server_is_contacted_within_the_bound() {
        // The SYNs of a connection (RFC 6298: the first timeout is a second, and doubles).
        let syns = [0, 1, 3, 7, 15, 31, 63].map(Duration::from_secs);
        for addresses in 1..4 {
            // hyper-util divides the time by the number of addresses.
            let share = CONNECT / addresses;
            let last = syns.into_iter().filter(|at| *at < share).max().unwrap_or_default();
            // The outage ends right after that SYN was lost.
            let late = share.saturating_sub(last) + Pace::default().most;
            assert!(late < BOUND, "{late:?}");
        }
    }

    #[tokio::test]
    async fn connection_whose_handshake_never_ends_is_given_up() {
        assert!(CONNECT < SETUP, "TCP alone takes longer");
        let never = std::future::pending::<Result<(), BoxError>>();
        let error = limited(Duration::from_millis(1), never).await.expect_err("no answer");
        assert_eq!(error.to_string(), "no answer within 1ms");
    }

    #[test]
    fn connection_that_leads_nowhere_ends_within_the_bound() {
        assert!(IDLE + AGAIN < UNANSWERED, "a lost probe ends no connection");
        assert!(UNANSWERED < BOUND, "{UNANSWERED:?}");
        assert!(REUSED < IDLE, "a new request follows on a connection that leads nowhere");
    }
}
