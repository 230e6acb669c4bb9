//! Many Services that no client uses: the rest of a large cluster beside the Service under test.
//!
//! They are written directly into the store of a real API server, in the form in which it would have written them,
//! because creating 50,000 of them through the API takes more than twelve minutes. The API server reads and serves them
//! like all others.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;

use crate::control_plane::ControlPlane;
use crate::rig::TARGET;
use crate::wait::wait_until_ok;

mod objects;
mod store;

use store::Store;

pub const NAMESPACE: &str = "scale";
const PORT: u16 = 80;
/// The number of concurrent requests.
const AT_ONCE: usize = 32;
/// The deadline for the API server to see all objects.
const PATIENCE: Duration = Duration::from_mins(3);

/// The Services that exist so far: `service-0` and on, type `ClusterIP`, one TCP port each.
#[derive(Debug, Default)]
pub struct Population {
    made: u32,
    newest: Option<SocketAddr>,
}

impl Population {
    /// Creates Services until there are `services`, each with all `backends`; returns the frontend of the newest.
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
            let (numbers, store) = (self.made..services, control_plane.store());
            let fill = || -> Result<Ipv4Addr> {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(async { fill(&Store::new(store)?, numbers, backends).await })
            };
            let address = control_plane.home().run_in(fill)??;
            until_known(control_plane, services - 1)?;
            self.newest = Some(SocketAddr::from((address, PORT)));
            self.made = services;
        }
        self.newest.context("no service yet")
    }
}

/// Creates Services and slices, the last one at the end; returns its address.
async fn fill(store: &Store, numbers: Range<u32>, backends: &[String]) -> Result<Ipv4Addr> {
    let last = numbers.end - 1;
    let one = |number| objects::put(store, number, backends);
    stream::iter(numbers.start..last)
        .map(one)
        .buffer_unordered(AT_ONCE)
        .try_for_each(async |_| Ok(()))
        .await?;
    objects::put(store, last, backends).await
}

/// Waits until the API server serves the last object, and so all of them: it sees them in their order.
fn until_known(control_plane: &ControlPlane, last: u32) -> Result<()> {
    for (group, kind) in [("api/v1", "services"), ("apis/discovery.k8s.io/v1", "endpointslices")] {
        // Resource version 0 reads from the server's cache, from which a watch would begin as well.
        let object =
            format!("/{group}/namespaces/{NAMESPACE}/{kind}/service-{last}?resourceVersion=0");
        wait_until_ok(PATIENCE, &format!("the API server serves {object}"), || {
            control_plane.kubectl(&["get", "--raw", &object]).map(drop)
        })?;
    }
    Ok(())
}

/// Returns the `EndpointSlice` of a Service without selector, with one port, [`TARGET`], and ready IPv4 backends.
///
/// # Errors
///
/// If the JSON does not match the API types.
pub fn slice(
    service: &str,
    port: &str,
    protocol: &str,
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
