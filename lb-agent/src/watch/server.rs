//! Where the API server is, and why no client can be made for it: errors that say what to do.

use std::path::PathBuf;

use axum::http::uri::InvalidUri;
use kube::config::{InClusterError, KubeconfigError};

/// Where the API server is and how to get in.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// `--kubeconfig`; without one, the service account of the pod we run in.
    pub kubeconfig: Option<PathBuf>,
    /// `--master`: address of the server, in place of the kubeconfig's or of the `ClusterIP` that
    /// pods are told, which only works once somebody programs it.
    pub master: Option<String>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig cannot be read.
    #[error("kubeconfig {}: {source}; give a readable file to --kubeconfig", file.display())]
    Kubeconfig { file: PathBuf, source: Box<KubeconfigError> },
    /// The kubeconfig lacks the context that it names.
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
    /// A kubeconfig that leads to no usable client.
    #[error("kubeconfig {}: {source}; correct its cluster and user", file.display())]
    Unusable { file: PathBuf, source: Box<kube::Error> },
    /// A proxy that is none.
    #[error("proxy {0:?} is not valid; write http://, https:// or socks5://HOST:PORT")]
    Proxy(String),
    /// The file of the token.
    #[error("token file {}: {source}; mount it, or correct the kubeconfig", file.display())]
    Token { file: PathBuf, source: std::io::Error },
    /// Not in a pod, and no kubeconfig.
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
    /// The thread that asks a credential plugin ended.
    #[error("credentials could not be built: {0}")]
    Thread(#[from] tokio::task::JoinError),
}
