//! HTTP listeners. A port that is taken does not keep the agent from serving packets: listening is retried.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Ipv6V6Only;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::yield_now;
use tokio::time::sleep;
use tower::ServiceExt as _;
use tracing::{debug, info, warn};

use crate::http_server::connections::{Connections, HttpConnection, Progress};
use crate::http_server::serve as serve_connection;

/// Pause between attempts, as in kube-proxy.
const PAUSE: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for example if file descriptors run out.
const BREATH: Duration = Duration::from_millis(100);
/// Length of the kernel's queue of connections to accept.
const BACKLOG: u32 = 1_024;
/// Largest number of connections of one listener.
const CONNECTIONS: usize = 512;

/// The addresses that could not be bound so far, and the problem of each for operators.
#[derive(Clone, Debug, Default)]
pub(super) struct Unbound(Arc<Mutex<BTreeMap<SocketAddr, String>>>);

impl Unbound {
    pub(super) fn problems(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn record<T>(&self, address: SocketAddr, what: &str, bound: &io::Result<T>) {
        let mut unbound = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match bound {
            Ok(_) => drop(unbound.remove(&address)),
            Err(error) => {
                let problem = format!(
                    "the {what} server cannot listen on {address}: {error}; requests there reach another process, \
                     such as kube-proxy, or none"
                );
                drop(unbound.insert(address, problem));
            }
        }
    }
}

/// Serves a router in a task of its own. Returns an error only if `is_needed` and the address cannot be bound.
pub(super) fn start(
    address: SocketAddr,
    what: &'static str,
    router: Router,
    is_needed: bool,
    unbound: &Unbound,
) -> io::Result<()> {
    let first = listen(address);
    match &first {
        Ok(_) => info!(%address, what, "listening"),
        Err(error) => warn!(%address, what, %error, "listener could not bind its address"),
    }
    if is_needed {
        drop(tokio::spawn(accept(first?, router)));
    } else {
        // This task binds again if the address is in use now, for example by a kube-proxy that is being replaced.
        drop(tokio::spawn(serve(first, address, what, router, unbound.clone())));
    }
    Ok(())
}

/// Binds an address as Go does: the wildcard of either family means both, if the kernel has both.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if address.ip().is_unspecified()
        // A kernel without IPv6 refuses the socket; IPv4 alone is then served.
        && let Ok(socket) = TcpSocket::new_v6()
    {
        // The default of the option is the sysctl `net.ipv6.bindv6only`, which a node may have set.
        setsockopt(&socket, Ipv6V6Only, &false)?;
        return listen_with(socket, (Ipv6Addr::UNSPECIFIED, address.port()).into());
    }
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    listen_with(socket, address)
}

fn listen_with(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    // Without this, a restart could not bind while connections of the run before are in `TIME_WAIT`. Go sets it for
    // every listener.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn serve(
    first: io::Result<TcpListener>,
    address: SocketAddr,
    what: &str,
    router: Router,
    unbound: Unbound,
) {
    let mut listener = first;
    loop {
        unbound.record(address, what, &listener);
        match listener {
            Ok(listener) => return accept(listener, router).await,
            Err(_) => sleep(PAUSE).await,
        }
        listener = listen(address);
        if listener.is_ok() {
            info!(%address, what, "listening");
        }
    }
}

async fn accept(listener: TcpListener, router: Router) {
    let connections = Connections::bounded(CONNECTIONS, CONNECTIONS);
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!(%error, "accepting a connection failed");
                sleep(BREATH).await;
                continue;
            }
        };
        let progress = Progress::begin();
        let answer = answer(stream, router.clone(), Arc::clone(&progress));
        let task = tokio::spawn(answer).abort_handle();
        connections.admit(HttpConnection { of: 0, from: from.ip(), progress, task });
        // A request may already be waiting; it is read before the next connection is accepted.
        yield_now().await;
    }
}

async fn answer(stream: TcpStream, router: Router, progress: Arc<Progress>) {
    let answer = |request| {
        let router = router.clone();
        async move {
            let Ok(response) = router.oneshot(request).await;
            response
        }
    };
    serve_connection(stream, progress, answer).await;
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::Ipv4Addr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::*;

    async fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/healthz", get(async || "ok"));
        drop(tokio::spawn(accept(listener, router)));
        address
    }

    async fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer).await {
            Ok(_) => {}
            // The unread part of a request resets the connection.
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Longer than a connection without a request may live.
    const PATIENCE: Duration = Duration::from_secs(30);
    const QUESTION: &[u8] = b"GET /healthz HTTP/1.0\r\n\r\n";

    #[tokio::test]
    async fn the_wildcard_of_either_family_is_both() {
        for wildcard in ["0.0.0.0:0", "[::]:0"] {
            let listener = listen(wildcard.parse().unwrap()).unwrap();
            let port = listener.local_addr().unwrap().port();
            let router = Router::new().route("/healthz", get(async || "ok"));
            drop(tokio::spawn(accept(listener, router)));
            for address in [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
            {
                let answer = ask(address, QUESTION).await;
                assert!(answer.ends_with("\r\n\r\nok"), "{wildcard}: {address}");
            }
        }
        let one = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(one.local_addr().unwrap().is_ipv4());
    }

    #[tokio::test]
    async fn garbage_gets_an_error_and_later_requests_an_answer() {
        let address = server().await;
        let long = [b"GET /healthz HTTP/1.1\r\nX: ".as_slice(), &vec![b'a'; 100_000]].concat();
        for garbage in
            [b"\x16\x03\x01\x02\x00\x01\x00\x01".as_slice(), b"\r\n\r\n\0\0\0\0\r\n\r\n", &long]
        {
            let answer = timeout(PATIENCE, ask(address, garbage)).await.expect("it ends");
            assert!(answer.is_empty() || answer.contains(" 4"), "{answer}");
        }
        assert!(ask(address, QUESTION).await.ends_with("\r\n\r\nok"));
    }

    #[tokio::test]
    async fn silent_clients_do_not_block_requests() {
        let address = server().await;
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS + 50 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /hea").await.unwrap();
            idle.push(stream);
        }
        let answer = timeout(PATIENCE / 4, ask(address, QUESTION)).await.expect("an answer");
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
        let mut oldest = idle.swap_remove(0);
        let mut rest = Vec::new();
        let gone = timeout(PATIENCE, oldest.read_to_end(&mut rest)).await.expect("it ends");
        assert!(gone.is_err() || rest.is_empty() || rest.starts_with(b"HTTP/1.1 4"));
    }
}
