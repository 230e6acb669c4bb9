//! Makes the client: from a kubeconfig or from inside a pod.

use std::sync::Arc;

use kube::Client;
use kube::client::ClientBuilder;

use super::observe::{Observe, Observer};
use super::renew::Renewed;
pub use super::server::{ClientError, Server};
use super::source_address::AddressUpdates;

impl Server {
    /// Checks that the files with address and credentials can be read.
    pub async fn check(&self) -> Result<(), ClientError> {
        self.access().await.map(drop)
    }

    /// Makes a client that reports each request to `observer` and reads its files again when they change.
    ///
    /// Nothing is sent yet, so an unreachable server is no error here. A credential plugin that fails is run again. A
    /// connection from an address that `addresses` loses ends at once.
    pub async fn client(
        &self,
        observer: Option<Arc<dyn Observer>>,
        addresses: AddressUpdates,
    ) -> Result<Client, ClientError> {
        let service = Renewed::start(self.clone(), addresses).await?;
        Ok(ClientBuilder::new(service, "default").with_layer(&Observe::new(observer)).build())
    }
}

#[cfg(test)]
mod tests;
