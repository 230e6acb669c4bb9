//! A cluster for each way of serving Services, all alike but for that.
//!
//! What programs them has ended before anything is measured (a data path goes on without its agent, rules without
//! kube-proxy, and neither needs the API server), so that nothing runs beside client and server.

use std::env;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::generator::{Count, Operation};
use crate::agent::Source;
use crate::cluster::{Cluster, Published, until_answered_by};
use crate::control_plane::kube_proxy::{self, KubeProxy, Mode};
use crate::process::{Program, run};
use crate::rig::{Rig, TARGET};
use crate::topology::{Family, Member, Shape};
use crate::traffic::{Ask, Protocol};
use crate::wait::wait_until_ok;

/// How long a server may take until it answers.
const START: Duration = Duration::from_secs(10);
/// Everything pods have addresses from.
const PODS: &str = "10.244.0.0/16,fd00:244::/32";

/// Who serves Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Way {
    /// Nobody: the client asks the backend itself, over the same hops.
    Plain,
    /// kube-proxy with nftables, as it comes.
    KubeProxy,
    /// Ours, as it comes.
    Ours,
    /// Ours with socket hooks for pods too.
    OursSockets,
}

impl Way {
    /// In the order of a round.
    pub(super) const ALL: [Self; 4] = [Self::Plain, Self::KubeProxy, Self::Ours, Self::OursSockets];

    /// Its name in tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::KubeProxy => "kube-proxy",
            Self::Ours => "ours",
            Self::OursSockets => "ours-sockets",
        }
    }

    /// What our configuration document says; nothing where the agent is not ours.
    const fn settings(self) -> Option<&'static str> {
        match self {
            Self::Plain | Self::KubeProxy => None,
            Self::Ours => Some(""),
            Self::OursSockets => Some("socketLB: all\n"),
        }
    }

    /// Whether it differs from the others on a path.
    pub(super) const fn serves(self, path: Route) -> bool {
        !matches!((self, path), (Self::OursSockets, Route::PortNear | Route::PortFar))
    }
}

/// Who asks whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Route {
    /// A pod asks a `ClusterIP` whose backend is on another node.
    PodFar,
    /// Outside asks a `NodePort` whose backend is on that node.
    PortNear,
    /// Outside asks a `NodePort` whose backend is on another node.
    PortFar,
}

impl Route {
    pub(super) const ALL: [Self; 3] = [Self::PodFar, Self::PortNear, Self::PortFar];

    /// Its name in tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::PodFar => "pod-far",
            Self::PortNear => "port-near",
            Self::PortFar => "port-far",
        }
    }
}

/// A cluster whose Services are served in one way.
pub(super) struct Site {
    pub(super) way: Way,
    // Before the namespaces that they live in.
    _servers: Vec<Program>,
    rig: Rig,
    near: Option<Published>,
    far: Option<Published>,
}

impl Site {
    /// Builds it; everything answers when this returns.
    pub(super) fn build(way: Way, shape: Shape) -> Result<Self> {
        let (rig, services) = if way == Way::Plain {
            (Rig::build(crate::topology::Topology::builder(shape))?, [None, None])
        } else {
            let (rig, [near, far]) = served(way, shape)?;
            (rig, [Some(near), Some(far)])
        };
        same_hops(&rig)?;
        let servers = vec![serve(rig.pod(0, 1)?)?, serve(rig.pod(1, 0)?)?];
        let [near, far] = services;
        let site = Self { way, _servers: servers, rig, near, far };
        for path in Route::ALL {
            for operation in [Operation::Connect, Operation::Udp] {
                wait_until_ok(
                    START,
                    &format!("{} answers on {}", way.name(), path.name()),
                    || site.measure(path, operation, Duration::from_millis(5)).map(drop),
                )?;
            }
        }
        Ok(site)
    }

    /// Asks for a while and counts.
    pub(super) fn measure(
        &self,
        path: Route,
        operation: Operation,
        time: Duration,
    ) -> Result<Count> {
        let (from, to): (&Member, _) = match path {
            Route::PodFar => (self.rig.pod(0, 0)?, self.target(path, operation)?),
            Route::PortNear | Route::PortFar => (self.rig.client(), self.target(path, operation)?),
        };
        let mut command = from.home().command(&env::current_exe()?)?;
        let _: &mut _ = command.args(["traffic-ask", operation.name(), &to.to_string()]);
        let _: &mut _ = command.arg(time.as_millis().to_string());
        let said = run(&mut command, "")
            .with_context(|| format!("{}, {}, {}", self.way.name(), path.name(), to))?;
        serde_json::from_str(&said).with_context(|| format!("the generator said {said}"))
    }

    fn target(&self, path: Route, operation: Operation) -> Result<SocketAddr> {
        let family = Family::V4;
        let protocol = if operation == Operation::Udp { Protocol::Udp } else { Protocol::Tcp };
        let (service, backend) = match path {
            Route::PodFar | Route::PortFar => (&self.far, self.rig.pod(1, 0)?),
            Route::PortNear => (&self.near, self.rig.pod(0, 1)?),
        };
        match (service, path) {
            (None, _) => Ok(backend.addresses().socket(family, TARGET)),
            (Some(service), Route::PodFar) => Ok(service.cluster_ip(family)),
            (Some(service), Route::PortNear | Route::PortFar) => {
                service.node_port(self.rig.node(0)?, family, protocol)
            }
        }
    }
}

/// A cluster with a real API server, whose two Services are programmed when this returns; then only the rules stay.
fn served(way: Way, shape: Shape) -> Result<(Rig, [Published; 2])> {
    let mut cluster = Cluster::without_agents(shape)?;
    let services = [cluster.publish("near", false)?, cluster.publish("far", false)?];
    let [near, far] = &services;
    cluster.endpoints(near, &[cluster.rig().pod(0, 1)?])?;
    cluster.endpoints(far, &[cluster.rig().pod(1, 0)?])?;
    let kubeconfig = cluster.control_plane().kubeconfig();
    let mut proxies = Vec::new();
    if let Some(settings) = way.settings() {
        agents(cluster.rig_mut(), &kubeconfig, settings)?;
    } else {
        for node in cluster.rig().topology().nodes() {
            let netns = node.netns().name();
            let options = kube_proxy::Options::new(netns, Mode::Nftables, &kubeconfig, node.name());
            let options = kube_proxy::Options { cluster_cidr: Some(PODS), ..options };
            proxies.push(KubeProxy::start(&options)?);
        }
    }
    let rig = cluster.rig();
    for (service, backend) in [(near, "pod-a2"), (far, "pod-b1")] {
        for protocol in Protocol::ALL {
            let to = service.cluster_ip(Family::V4);
            until_answered_by(rig.pod(0, 0)?, Ask::new(protocol, to), &[backend])?;
            let to = service.node_port(rig.node(0)?, Family::V4, protocol)?;
            until_answered_by(rig.client(), Ask::new(protocol, to), &[backend])?;
        }
    }
    drop(proxies);
    let mut rig = cluster.into_rig();
    if way.settings().is_some() {
        for _ in 0..2 {
            rig.take_agent(0)?.stop()?;
        }
    }
    Ok((rig, services))
}

fn agents(rig: &mut Rig, kubeconfig: &Path, settings: &str) -> Result<()> {
    let file = rig.topology().folder("settings")?.join("agent.yaml");
    let text = format!("apiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\n{settings}");
    std::fs::write(&file, text).with_context(|| format!("configuration {}", file.display()))?;
    let flag = format!("--config={}", file.display());
    rig.start_agents_from(Source::Kubeconfig(kubeconfig), &[&flag])
}

/// A backend on node-b is asked through node-a and answers through it, as a `NodePort` of node-a makes it.
fn same_hops(rig: &Rig) -> Result<()> {
    let (near, far, client) = (rig.node(0)?, rig.node(1)?, rig.client());
    for node in [near, far] {
        // Or a node tells whom it forwards for to go around it, and plain routing has a hop less.
        for which in ["all", "eth0"] {
            node.netns().sysctl(&format!("net.ipv4.conf.{which}.send_redirects"), "0")?;
        }
    }
    let [backend, host] = [rig.pod(1, 0)?.addresses().v4, near.addresses().v4];
    client.netns().ip(&format!("route add {backend}/32 via {host}"))?;
    far.netns().ip(&format!("route add {}/32 via {host}", client.addresses().v4))
}

/// Replaces what answers tests by what answers measurements.
fn serve(backend: &Member) -> Result<Program> {
    for protocol in Protocol::ALL {
        backend.peer().stop_serving(protocol, &backend.addresses().both(), TARGET)?;
    }
    let mut command = backend.home().command(&env::current_exe()?)?;
    let at = backend.addresses().socket(Family::V4, TARGET).to_string();
    let _: &mut _ = command.args(["traffic-serve", &at]);
    Program::spawn("server", command, Path::new("/dev/null"))
}
