//! Ten thousand Services through a real API server: all of them are programmed, one of the last is answered, and
//! the agent stays small.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::{Api, Client};
use lb_agent::snapshot::ViewHealth;
use lb_agent::watch::client::Server;
use lb_tests::cluster::Cluster;
use lb_tests::rig::{TARGET, ask};
use lb_tests::topology::Shape;
use lb_tests::traffic::Ask;
use lb_tests::wait::wait_until_ok;
use serde_json::json;

const SERVICES: usize = 10_000;
const ENDPOINTS: usize = 3;
/// Requests on their way at a time.
const AT_ONCE: usize = 50;
const PATIENCE: Duration = Duration::from_mins(5);
/// What 10,000 services with three endpoints may cost; a debug build costs hardly more.
const MEMORY: u64 = 50 << 20;

#[test]
#[ignore = "takes three minutes: cargo test -p lb-tests --test control_plane_scale -- --ignored"]
fn ten_thousand_services_of_an_api_server_are_served() -> Result<()> {
    let cluster = Cluster::start(Shape::Routed)?;
    let rig = cluster.rig();
    let (began, kubeconfig) = (Instant::now(), cluster.control_plane().kubeconfig());
    let pods = rig.pods();
    let backends = pods.iter().take(ENDPOINTS).map(|pod| pod.addresses().v4.to_string());
    let backends: Vec<String> = backends.collect();
    drop(cluster.control_plane().kubectl(&["create", "namespace", "scale"])?);
    // The server is reached from a node, as by the agents.
    rig.node(0)?.netns().run_in(|| -> Result<()> {
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(async {
            let server = Server { kubeconfig: Some(kubeconfig), master: None };
            let client = server.client(&ViewHealth::default(), None).await?;
            let all = stream::iter(0..SERVICES).map(Ok);
            all.try_for_each_concurrent(AT_ONCE, |number| create(client.clone(), number, &backends))
                .await
        })
    })??;
    println!("created in {:?}", began.elapsed());
    let agent = rig.agent(0)?;
    let names = wait_until_ok(PATIENCE, "all of them are programmed", || {
        let names = agent.command(&["service", "list", "-n", "scale", "-o", "name"])?;
        let count = names.lines().count();
        ensure!(count == SERVICES, "{count} are");
        Ok(names)
    })?;
    println!("programmed after {:?}", began.elapsed());
    ensure!(names.contains("service-9999"), "the last one is missing");
    let address = cluster.control_plane().kubectl(&[
        "get",
        "service",
        "-n",
        "scale",
        "service-9999",
        "-o",
        "jsonpath={.spec.clusterIP}",
    ])?;
    let to = format!("{}:80", address.trim()).parse().context("a ClusterIP")?;
    drop(ask(rig.pod(0, 0)?, Ask::tcp(to))?);
    let status = fs::read_to_string(format!("/proc/{}/status", agent.id()))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no memory")?;
    let memory = line.trim().trim_end_matches(" kB").parse::<u64>()? << 10;
    println!("{memory} bytes of anonymous memory");
    ensure!(memory < MEMORY, "{memory} bytes");
    Ok(())
}

/// One Service without selector, and its endpoints.
async fn create(client: Client, number: usize, backends: &[String]) -> Result<()> {
    let name = format!("service-{number}");
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": TARGET}]},
    }))?;
    let endpoint = |ip: &String| json!({"addresses": [ip], "conditions": {"ready": true}});
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": TARGET}],
        "endpoints": backends.iter().map(endpoint).collect::<Vec<_>>(),
    }))?;
    let options = PostParams::default();
    let services = Api::<Service>::namespaced(client.clone(), "scale");
    drop(services.create(&options, &service).await.with_context(|| name.clone())?);
    let slices = Api::<EndpointSlice>::namespaced(client, "scale");
    drop(slices.create(&options, &slice).await.with_context(|| name.clone())?);
    Ok(())
}
