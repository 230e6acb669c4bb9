//! The address and credentials of the API server, and the errors of making a client. Each error names a remedy.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::uri::InvalidUri;
use kube::config::{InClusterError, KubeconfigError};
use tower::BoxError;

/// The sources of the address and credentials of the API server.
#[derive(Clone, Debug, Default)]
pub struct Server {
    /// File of `--kubeconfig`; without it, the service account of the agent's pod is used.
    pub kubeconfig: Option<PathBuf>,
    /// Address of `--master`. It overrides that of the kubeconfig, or the `ClusterIP` in a pod's environment, which
    /// only works once it is programmed.
    pub master: Option<String>,
}

/// The reason why no client can be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig cannot be read.
    #[error("kubeconfig {}: {source}; give a readable file to --kubeconfig", file.display())]
    Kubeconfig { file: PathBuf, source: Box<KubeconfigError> },
    /// The kubeconfig is no valid YAML, or has other types.
    #[error("kubeconfig {}: failed to parse kubeconfig YAML{place}; correct it", file.display())]
    Syntax {
        file: PathBuf,
        /// Line and column, if they are known.
        place: String,
    },
    /// The kubeconfig lacks the context that it names.
    #[error(
        "kubeconfig {}: it has no context {context:?}, only {known:?}; correct its current-context",
        file.display()
    )]
    NoContext {
        file: PathBuf,
        /// Value of `current-context`.
        context: String,
        /// Names of the existing contexts.
        known: Vec<String>,
    },
    /// The kubeconfig does not result in a usable client.
    #[error("kubeconfig {}: {source}; correct its cluster and user", file.display())]
    Unusable { file: PathBuf, source: BoxError },
    /// The proxy of the kubeconfig is not valid.
    #[error("proxy {0:?} is not valid; write http://, https:// or socks5://HOST:PORT")]
    Proxy(String),
    /// The file of the token cannot be read.
    #[error("token file {}: {source}; mount it, or correct the kubeconfig", file.display())]
    Token { file: PathBuf, source: std::io::Error },
    /// The agent does not run in a pod, and there is no kubeconfig.
    #[error("no --kubeconfig, and not in a pod: {0}; give --kubeconfig FILE or --manifests DIR")]
    NotInPod(#[source] Box<InClusterError>),
    /// The service account does not result in a usable client.
    #[error("service account of this pod: {0}; mount its token, or give --kubeconfig FILE")]
    ServiceAccount(#[source] BoxError),
    /// `--master` is not an address.
    #[error("--master {text}: {source}; write it as https://10.0.0.1:6443")]
    Master {
        /// Value of the flag.
        text: String,
        source: InvalidUri,
    },
    /// `--master` lacks its scheme or host.
    #[error("--master {0}: no scheme or no host; write it as https://10.0.0.1:6443")]
    MasterParts(String),
    /// The client was not built in time: a credential plugin hangs.
    #[error("credential plugin gave no answer within {0:?}; check why it hangs")]
    Slow(Duration),
    /// Requests wait for a credential plugin that hangs.
    #[error("credential plugin gave no answer to earlier requests; check why it hangs")]
    Hangs,
    /// The thread that builds the client, and may run a credential plugin, ended without a result.
    #[error("credentials could not be built: {0}")]
    Thread(#[from] tokio::task::JoinError),
}
