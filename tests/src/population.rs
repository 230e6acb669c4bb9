//! Services in great number that nobody asks, made through a real API server: what a cluster has beside the one that
//! is looked at.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::{Api, Client};
use lb_agent::snapshot::ViewHealth;
use lb_agent::watch::client::Server;
use serde_json::json;

use crate::control_plane::ControlPlane;
use crate::rig::TARGET;

/// Their namespace.
pub const NAMESPACE: &str = "scale";
/// Their port.
const PORT: u16 = 80;
/// Requests on their way at a time.
const AT_ONCE: usize = 50;

/// The Services that were made so far: `service-0` and on, `ClusterIP`, one TCP port.
#[derive(Debug, Default)]
pub struct Population {
    made: u32,
    newest: Option<SocketAddr>,
}

impl Population {
    /// Makes more until there are `services`, each with all `backends`; returns where the newest is asked.
    pub fn grow(
        &mut self,
        control_plane: &ControlPlane,
        services: u32,
        backends: &[String],
    ) -> Result<SocketAddr> {
        if self.made == 0 {
            drop(control_plane.kubectl(&["create", "namespace", NAMESPACE])?);
        }
        if services > self.made {
            let numbers = self.made..services;
            let address =
                in_client(control_plane, async |client| create(client, numbers, backends).await)?;
            self.newest = Some(SocketAddr::new(address, PORT));
            self.made = services;
        }
        self.newest.context("no service yet")
    }
}

/// Does something with a client of the API server, from the namespace that the server lives in.
pub(crate) fn in_client<T: Send>(
    control_plane: &ControlPlane,
    work: impl AsyncFnOnce(Client) -> Result<T> + Send,
) -> Result<T> {
    let server = Server { kubeconfig: Some(control_plane.kubeconfig()), master: None };
    let work = || -> Result<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let client = server.client(&ViewHealth::default(), None).await?;
            work(client).await
        })
    };
    control_plane.home().run_in(work)?
}

/// Makes Services and slices; returns the address of the last.
async fn create(client: Client, numbers: Range<u32>, backends: &[String]) -> Result<IpAddr> {
    let last = numbers.end - 1;
    let one = |number| {
        let client = client.clone();
        async move { create_one(client, number, backends).await.map(|address| (number, address)) }
    };
    let addresses = stream::iter(numbers).map(one).buffer_unordered(AT_ONCE);
    let is_last = |(number, _): &(u32, IpAddr)| std::future::ready(*number == last);
    let found = addresses.try_filter(is_last).try_collect::<Vec<_>>().await?;
    found.first().map(|(_, address)| *address).context("the last service was not made")
}

/// One Service without selector, and its endpoints.
async fn create_one(client: Client, number: u32, backends: &[String]) -> Result<IpAddr> {
    let name = format!("service-{number}");
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"ports": [{"name": "http", "port": PORT, "targetPort": TARGET}]},
    }))?;
    let options = PostParams::default();
    let services = Api::<Service>::namespaced(client.clone(), NAMESPACE);
    let service = services.create(&options, &service).await.with_context(|| name.clone())?;
    let slices = Api::<EndpointSlice>::namespaced(client, NAMESPACE);
    let slice = slice(&name, ("http", "TCP"), backends)?;
    drop(slices.create(&options, &slice).await.with_context(|| name.clone())?);
    let address = service.spec.and_then(|spec| spec.cluster_ip);
    address.context("no clusterIP")?.parse().context("clusterIP")
}

/// The slice of a Service without selector, as somebody without a controller writes it.
pub(crate) fn slice(
    service: &str,
    (port, protocol): (&str, &str),
    backends: &[String],
) -> Result<EndpointSlice> {
    let endpoint = |ip: &String| json!({"addresses": [ip], "conditions": {"ready": true}});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": port, "protocol": protocol, "port": TARGET}],
        "endpoints": backends.iter().map(endpoint).collect::<Vec<_>>(),
    }))?)
}
