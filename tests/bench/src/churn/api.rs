//! The client that makes the changes: it keeps its connection to the API server open, so that a change costs one
//! request.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Instant;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lb_agent::watch::client::Server;
use lb_tests::control_plane::ControlPlane;
use lb_tests::population::{NAMESPACE, slice};
use lb_tests::rig::TARGET;
use serde_json::json;
use tokio::runtime::Runtime;

/// The port of the services that change.
const PORT: u16 = 80;
/// The address of the probe Service. An API server assigns the first 256 addresses of a large range only to a Service
/// that requests one, so this address is free.
const PROBE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 20);
/// The number of addresses after [`PROBE`] that new Services use in turn.
const ADDRESSES: u32 = 200;

/// The client of the API server that makes the changes, and its next address for a Service.
pub(super) struct Changer {
    runtime: Runtime,
    client: Client,
    made: u32,
}

impl Changer {
    /// Connects to the API server of `control_plane`; it writes into the namespace of the population.
    pub(super) fn new(control_plane: &ControlPlane) -> Result<Self> {
        let server = Server { kubeconfig: Some(control_plane.kubeconfig()), master: None };
        let (runtime, client) = control_plane.home().run_in(|| -> Result<_> {
            // The runtime's threads are created here, and so stay in the network namespace of the server.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()?;
            let client = runtime.block_on(server.client(None, None))?;
            Ok((runtime, client))
        })??;
        Ok(Self { runtime, client, made: 0 })
    }

    /// The frontend of the next Service to create.
    pub(super) fn next_address(&mut self) -> SocketAddr {
        self.made += 1;
        let address = Ipv4Addr::from(u32::from(PROBE) + 1 + self.made % ADDRESSES);
        SocketAddr::from((address, PORT))
    }

    /// The frontend of the probe Service, which stays.
    pub(super) fn probe_address() -> SocketAddr {
        SocketAddr::from((PROBE, PORT))
    }

    /// Creates a Service with a given address and returns the start time of the request. Its slice is created before
    /// it.
    pub(super) fn make(&self, name: &str, to: SocketAddr, backend: &str) -> Result<Instant> {
        let slice = slice(name, "dns", "UDP", &[backend.to_owned()])?;
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "clusterIP": to.ip(),
                "ports": [{"name": "dns", "protocol": "UDP", "port": PORT, "targetPort": TARGET}],
            },
        }))?;
        let (slices, services) = (self.slices(), self.services());
        let began = self.ask(async move || {
            let options = PostParams::default();
            drop(slices.create(&options, &slice).await?);
            let began = Instant::now();
            drop(services.create(&options, &service).await?);
            Ok(began)
        });
        began.with_context(|| format!("make {name}"))
    }

    /// Gives a Service another backend, and returns the start time of the request.
    pub(super) fn point(&self, name: &str, backend: &str) -> Result<Instant> {
        let endpoints = json!({
            "endpoints": [{"addresses": [backend], "conditions": {"ready": true}}],
        });
        let (slices, owned) = (self.slices(), name.to_owned());
        let began = self.ask(async move || {
            let began = Instant::now();
            let patch = Patch::Merge(&endpoints);
            drop(slices.patch(&owned, &PatchParams::default(), &patch).await?);
            Ok(began)
        });
        began.with_context(|| format!("change the backend of {name}"))
    }

    /// Removes a Service and its slice.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        let (slices, services, owned) = (self.slices(), self.services(), name.to_owned());
        let removed = self.ask(async move || {
            drop(services.delete(&owned, &DeleteParams::default()).await?);
            drop(slices.delete(&owned, &DeleteParams::default()).await?);
            Ok(())
        });
        removed.with_context(|| format!("remove {name}"))
    }

    fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Runs a request on a thread of the runtime, so that a new connection is made in the server's network namespace.
    fn ask<T: Send + 'static, F>(&self, work: impl FnOnce() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.runtime.block_on(self.runtime.spawn(work())).context("a request panicked")?
    }
}
