//! Makes the client: from a kubeconfig or from inside a pod, with errors that say what to do.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::http::Uri;
use axum::http::uri::InvalidUri;
use kube::client::ClientBuilder;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::observe::{Observe, Observer};
use crate::snapshot::ViewHealth;

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
    Kubeconfig {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        source: Box<KubeconfigError>,
    },
    /// A kubeconfig that leads to no usable client.
    #[error("kubeconfig {}: {source}; correct its cluster and user", file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        source: Box<kube::Error>,
    },
    /// Not in a pod, and no kubeconfig.
    #[error("no --kubeconfig, and not in a pod: {0}; give --kubeconfig FILE or --manifests DIR")]
    NotInPod(#[source] Box<InClusterError>),
    /// The service account leads to no usable client.
    #[error(
        "service account of this pod: {0}; let its token be mounted, or give --kubeconfig FILE"
    )]
    ServiceAccount(#[source] Box<kube::Error>),
    /// `--master` is not an address.
    #[error("--master {text}: {source}; write it as https://10.0.0.1:6443")]
    Master {
        /// As given.
        text: String,
        /// What is wrong.
        source: InvalidUri,
    },
    /// `--master` lacks its scheme or host.
    #[error("--master {0}: no scheme or no host; write it as https://10.0.0.1:6443")]
    MasterParts(String),
}

impl Server {
    /// Makes a client whose requests tell `view` that watches work and `observer` how they went.
    /// Nothing is sent yet: a server that is away is no error here.
    pub async fn client(
        &self,
        view: &ViewHealth,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<Client, ClientError> {
        let master = self.master.as_deref().map(master).transpose()?;
        let mut config = match &self.kubeconfig {
            Some(file) => from_file(file).await?,
            None => in_pod(master.is_some())?,
        };
        if let Some(master) = master {
            config.cluster_url = master;
        }
        let builder = ClientBuilder::try_from(config).map_err(|source| {
            let source = Box::new(source);
            match &self.kubeconfig {
                Some(file) => ClientError::Unusable { file: file.clone(), source },
                None => ClientError::ServiceAccount(source),
            }
        })?;
        Ok(builder.with_layer(&Observe::new(view.clone(), observer)).build())
    }
}

async fn from_file(file: &Path) -> Result<Config, ClientError> {
    let wrong =
        |source| ClientError::Kubeconfig { file: file.to_owned(), source: Box::new(source) };
    let kubeconfig = Kubeconfig::read_from(file).map_err(wrong)?;
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(wrong)
}

fn in_pod(address_known: bool) -> Result<Config, ClientError> {
    let config = if address_known { Config::incluster_dns() } else { Config::incluster_env() };
    config.map_err(|source| ClientError::NotInPod(Box::new(source)))
}

fn master(text: &str) -> Result<Uri, ClientError> {
    let wrong = |source| ClientError::Master { text: text.to_owned(), source };
    let uri: Uri = text.parse().map_err(wrong)?;
    let complete = matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
    if complete { Ok(uri) } else { Err(ClientError::MasterParts(text.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(server: Server) -> String {
        match server.client(&ViewHealth::default(), None).await {
            Ok(_) => panic!("a client"),
            Err(error) => error.to_string(),
        }
    }

    fn kubeconfig(folder: &tempfile::TempDir, text: &str) -> PathBuf {
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, text).expect("a file");
        file
    }

    const MINIMAL: &str = "
apiVersion: v1
kind: Config
clusters: [{ name: c, cluster: { server: 'http://127.0.0.1:1' } }]
users: [{ name: u, user: {} }]
contexts: [{ name: x, context: { cluster: c, user: u } }]
current-context: x
";

    #[tokio::test]
    async fn a_server_that_is_away_is_no_error_yet() {
        let folder = tempfile::tempdir().expect("a folder");
        let server = Server { kubeconfig: Some(kubeconfig(&folder, MINIMAL)), master: None };
        assert!(server.client(&ViewHealth::default(), None).await.is_ok());
    }

    #[tokio::test]
    async fn errors_name_the_file_and_the_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = Server { kubeconfig: Some("/nowhere/config".into()), master: None };
        let text = refused(missing).await;
        assert!(text.starts_with("kubeconfig /nowhere/config: "), "{text}");
        assert!(text.ends_with("give a readable file to --kubeconfig"), "{text}");
        let broken = Server { kubeconfig: Some(kubeconfig(&folder, "clusters: {")), master: None };
        let text = refused(broken).await;
        assert!(text.contains("failed to parse kubeconfig YAML"), "{text}");
        let empty = Server { kubeconfig: Some(kubeconfig(&folder, "kind: Config")), master: None };
        assert!(refused(empty).await.contains("failed to determine current context"));
    }

    #[tokio::test]
    async fn the_master_must_be_a_whole_address() {
        for text in ["10.0.0.1:6443", "ftp://10.0.0.1", "/api", "https://", "a b"] {
            let server = Server { kubeconfig: None, master: Some(text.to_owned()) };
            assert!(refused(server).await.starts_with("--master "), "{text}");
        }
    }
}
