//! Makes the client: from a kubeconfig or from inside a pod.

use std::sync::Arc;

use kube::Client;
use kube::client::ClientBuilder;

use super::observe::{Observe, Observer};
use super::renew::Renewed;
pub use super::server::{ClientError, Server};
use super::source_address::Own;

impl Server {
    /// Makes a client whose requests tell `observer` how they went, and which reads its files again when they change.
    /// Nothing is sent yet: a server that is away is no error here, and a credential plugin that fails is asked again.
    /// A connection from an address that `own` loses ends at once.
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
