//! The listener: TLS on one address, HTTP/1.1 and HTTP/2.

mod accept;
mod connection;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use self::accept::{Errors, accepted};
use self::connection::{HTTP_1, HTTP_2, PATIENCE};
use crate::api::{Server, bootstrap, router};
use crate::files::{self, Files, Serving};
use crate::service::Ranges;
use crate::store::{self, Retention, Store};

/// Largest number of connections, of all clients together.
const CONNECTIONS: usize = 4_096;

/// The options of a control plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the store, the certificates and the kubeconfigs.
    pub data: PathBuf,
    /// Address and port to listen on.
    pub listen: SocketAddr,
    /// The ranges that cluster addresses and node ports come from.
    pub ranges: Ranges,
}

/// An error that keeps a control plane from running.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory is not usable.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The store is not usable.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The address cannot be listened on.
    #[error("listen on {address}: {cause}\nremedy: choose another address with --listen")]
    Listen {
        /// The address from the options.
        address: SocketAddr,
        /// The error of the system.
        cause: std::io::Error,
    },
    /// Certificate and key do not belong together, or cannot be parsed.
    #[error("TLS: {0}")]
    Tls(String),
}

/// A control plane that is ready for its first client.
#[expect(missing_debug_implementations, reason = "TLS shows nothing of itself")]
pub struct Running {
    router: Router,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    /// The address and port it listens on; the port is a number even if 0 was requested.
    pub address: SocketAddr,
}

impl Running {
    /// Opens the store, creates what is missing, and binds the address.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let files = Files::create(&options.data)?;
        let tokens = Arc::new(files.tokens()?);
        let store = Store::open(&files.store(), Retention::default())?;
        let listener = TcpListener::bind(options.listen).await;
        let refused = |cause| Error::Listen { address: options.listen, cause };
        let listener = listener.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let server = Server { store, ranges: options.ranges.clone(), port: address.port(), tokens };
        // First objects are written after the socket is bound, because the Service `kubernetes` contains its port, and
        // before the first request is served.
        bootstrap(&server).await?;
        let asked = match address.ip() {
            // No client can connect to the unspecified address, so the kubeconfig names the local one.
            ip if ip.is_unspecified() => IpAddr::from(Ipv4Addr::LOCALHOST),
            ip => ip,
        };
        let names = [asked, Ipv4Addr::LOCALHOST.into(), options.ranges.first().first()];
        let acceptor = acceptor(&files.serving(&names)?)?;
        files.publish(&format!("https://{}", SocketAddr::new(asked, address.port())))?;
        Ok(Self { router: router(server), listener, acceptor, address })
    }

    /// Returns the API as a service, for clients in this process.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    /// Serves until `end` completes. Requests under way are then cut off; stored objects are durable.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let connections = Arc::new(Semaphore::new(CONNECTIONS));
        let mut errors = Errors::default();
        tokio::pin!(end);
        loop {
            // The permit before the connection: over the limit, clients wait in the kernel's queue and need no memory
            // here.
            let permit = tokio::select! {
                () = &mut end => return,
                permit = Arc::clone(&connections).acquire_owned() => permit,
            };
            let (stream, _) = tokio::select! {
                () = &mut end => return,
                connection = accepted(|| self.listener.accept(), &mut errors) => connection,
            };
            let (acceptor, router) = (self.acceptor.clone(), self.router.clone());
            drop(tokio::spawn(async move {
                connection::serve(stream, &acceptor, router, PATIENCE).await;
                drop(permit);
            }));
        }
    }
}

fn acceptor(serving: &Serving) -> Result<TlsAcceptor, Error> {
    let wrong = |error: &dyn std::fmt::Display| Error::Tls(error.to_string());
    let chain = CertificateDer::pem_slice_iter(serving.chain.as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
    let key = PrivateKeyDer::from_pem_slice(serving.key.as_bytes());
    let key = key.map_err(|error| wrong(&error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| wrong(&error))?.with_no_client_auth();
    let mut config = config.with_single_cert(chain, key).map_err(|error| wrong(&error))?;
    // client-go prefers HTTP/2, with which all watches share one connection.
    config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
