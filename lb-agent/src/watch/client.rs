//! Makes the client, from a kubeconfig or from inside a pod, with errors that name the remedy.

use std::path::PathBuf;
use std::sync::Arc;

use axum::http::uri::InvalidUri;
use kube::Client;
use kube::client::ClientBuilder;
use kube::config::{InClusterError, KubeconfigError};

use super::observe::{Observe, Observer};
use super::renew::Renewed;
use super::source_address::Own;

/// The address of the API server and the credentials.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// `--kubeconfig`. Without one, the service account of this pod.
    pub kubeconfig: Option<PathBuf>,
    /// `--master`: address of the server. It replaces that of the kubeconfig, or the `ClusterIP` that pods get, which
    /// works only after a proxy has programmed it.
    pub master: Option<String>,
}

/// The reason why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig cannot be read.
    #[error("kubeconfig {}: {source}; give a readable file to --kubeconfig", file.display())]
    Kubeconfig { file: PathBuf, source: Box<KubeconfigError> },
    /// The kubeconfig lacks its current context.
    #[error(
        "kubeconfig {}: it has no context {context:?}, only {known:?}; correct its current-context",
        file.display()
    )]
    NoContext {
        file: PathBuf,
        /// Its `current-context`.
        context: String,
        /// The contexts that it has.
        known: Vec<String>,
    },
    /// The kubeconfig leads to no usable client.
    #[error("kubeconfig {}: {source}; correct its cluster and user", file.display())]
    Unusable { file: PathBuf, source: Box<kube::Error> },
    /// The proxy is not valid.
    #[error("proxy {0:?} is not valid; write http://, https:// or socks5://HOST:PORT")]
    Proxy(String),
    /// The token file cannot be read.
    #[error("token file {}: {source}; mount it, or correct the kubeconfig", file.display())]
    Token { file: PathBuf, source: std::io::Error },
    /// The process is not in a pod and has no kubeconfig.
    #[error("no --kubeconfig, and not in a pod: {0}; give --kubeconfig FILE or --manifests DIR")]
    NotInPod(#[source] Box<InClusterError>),
    /// The service account leads to no usable client.
    #[error("service account of this pod: {0}; mount its token, or give --kubeconfig FILE")]
    ServiceAccount(#[source] Box<kube::Error>),
    /// `--master` is not an address.
    #[error("--master {text}: {source}; write it as https://10.0.0.1:6443")]
    Master {
        /// As given.
        text: String,
        source: InvalidUri,
    },
    /// `--master` lacks its scheme or host.
    #[error("--master {0}: no scheme or no host; write it as https://10.0.0.1:6443")]
    MasterParts(String),
    /// The thread that runs a credential plugin ended.
    #[error("credentials could not be built: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

impl Server {
    /// Makes a client that reports each request to `observer` and reads its files again when they change.
    ///
    /// Nothing is sent yet, so an unreachable server is no error here. A credential plugin that fails is run again. A
    /// connection from an address that `own` loses ends at once.
    pub async fn client(
        &self,
        observer: Option<Arc<dyn Observer>>,
        own: Own,
    ) -> Result<Client, ClientError> {
        let service = Renewed::start(self.clone(), own).await?;
        Ok(ClientBuilder::new(service, "default").with_layer(&Observe::new(observer)).build())
    }
}

#[cfg(test)]
mod tests;
