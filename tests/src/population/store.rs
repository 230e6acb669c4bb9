//! A client of the API server's store, over the JSON gateway that etcd offers beside gRPC.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use k8s_openapi::ByteString;
use kube::api::PostParams;
use kube::core::Request;
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::{Value, json};

/// An HTTP client of the store.
pub(super) struct Store(Client);

/// The result of a transaction.
#[derive(Deserialize)]
struct Transaction {
    /// Whether the condition held; absent in the JSON if it did not.
    #[serde(default)]
    succeeded: bool,
}

impl Store {
    /// Makes a client, which connects with its first request.
    pub(super) fn new(address: SocketAddr) -> Result<Self> {
        let server = format!("http://{address}").parse().context("address of the store")?;
        Ok(Self(Client::try_from(Config::new(server))?))
    }

    /// Stores objects under their keys in one transaction, if the first key is free; returns whether it was.
    pub(super) async fn put_new(&self, objects: &[(String, Value)]) -> Result<bool> {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let (first, _) = objects.first().context("nothing to put")?;
        let put = |(key, value): &(String, Value)| json!({"requestPut": {"key": bytes(key), "value": bytes(&value.to_string())}});
        let transaction = json!({
            "compare": [{"key": bytes(first), "target": "CREATE", "result": "EQUAL", "createRevision": 0}],
            "success": objects.iter().map(put).collect::<Vec<_>>(),
        });
        let request = Request::new("/v3/kv/txn");
        let request = request.create(&PostParams::default(), serde_json::to_vec(&transaction)?)?;
        let said: Transaction = self.0.request(request).await.context("transaction")?;
        Ok(said.succeeded)
    }
}
