//! A cluster for each mode of serving Services. The clusters differ in nothing else, and one API server serves all of
//! them.
//!
//! The proxies have ended before a measurement begins (our data path stays active without its agent, rules stay without
//! kube-proxy), and the API server is stopped (SIGSTOP): nothing runs beside client and server.

use std::env;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lb_tests::cluster::{Published, until_answered_by};
use lb_tests::process::{Program, run};
use lb_tests::rig::{Rig, TARGET, matrix};
use lb_tests::topology::{Builder, Family, Member, Node};
use lb_tests::traffic::{Ask, Protocol};
use lb_tests::wait::wait_until_ok;

use super::super::proxy::Proxy;
use super::generator::{Count, Operation};
use super::minimal::Minimal;
use super::proxy_kind::{self, ProxyKind, Question, Route};
use crate::api_relay;

/// The deadline for the first answer of a server.
const START: Duration = Duration::from_secs(10);
/// The deadline for programming: kube-proxy takes minutes to write 10,000 services to iptables.
const PATIENCE: Duration = Duration::from_mins(10);

/// The Services that clients use.
#[derive(Debug)]
pub(super) struct Services {
    /// The Service whose backend is a pod of the node that clients address.
    pub(super) near: Published,
    /// The Service whose backend is a pod of the other node.
    pub(super) far: Published,
}

/// A cluster whose Services are served in one mode.
pub(super) struct Site {
    pub(super) kind: ProxyKind,
    // Dropped before the namespaces that they live in.
    servers: Vec<Program>,
    api_relay: Option<Program>,
    minimal: Option<Minimal>,
    rig: Rig,
}

impl Site {
    /// Builds the namespaces, without a proxy yet.
    pub(super) fn build(kind: ProxyKind, builder: Builder) -> Result<Self> {
        let builder =
            if kind.has_whole_checksums() { builder.without_checksum_offload() } else { builder };
        Self::around(kind, Rig::build(builder)?)
    }

    /// Uses existing namespaces.
    pub(super) fn around(kind: ProxyKind, rig: Rig) -> Result<Self> {
        same_hops(&rig)?;
        Ok(Self { kind, servers: Vec::new(), api_relay: None, minimal: None, rig })
    }

    /// Lets the nodes reach an API server that lives in another site, under its address there.
    pub(super) fn reach(&mut self, api_server: SocketAddr, netns: &str) -> Result<()> {
        self.api_relay = Some(api_relay::start(self.rig.topology(), api_server, netns)?);
        Ok(())
    }

    /// The backend address of services that no client uses.
    pub(super) fn backend(&self) -> Result<String> {
        Ok(self.rig.pod(1, 0)?.ip(Family::V4).to_string())
    }

    /// Attaches the programs that serve one `ClusterIP`, if this is the mode of the site.
    pub(super) fn attach(&mut self, object: &Path, services: &Services) -> Result<()> {
        let proxy_kind::Agent::Minimal { through_stack } = self.kind.agent() else { return Ok(()) };
        let frontend = |family| services.far.cluster_ip(family);
        self.minimal = Some(Minimal::attach(&self.rig, object, frontend, through_stack)?);
        for (family, protocol) in matrix() {
            let ask = Ask::new(protocol, frontend(family));
            until_answered_by(self.rig.pod(0, 0)?, ask, &["pod-b1"])?;
        }
        Ok(())
    }

    /// Programs all Services on both nodes, and then stops the proxies. `newest` is the frontend of the newest Service.
    pub(super) fn program(
        &self,
        kubeconfig: &Path,
        services: &Services,
        newest: SocketAddr,
    ) -> Result<()> {
        let nodes = self.rig.topology().nodes().iter();
        // Both proxies start at the same time, because they are independent.
        let started = nodes.filter_map(|node| self.start(node, kubeconfig).transpose());
        let mut running: Vec<Proxy> = started.collect::<Result<_>>()?;
        running.iter_mut().try_for_each(|proxy| proxy.wait_ready(PATIENCE))?;
        if !running.is_empty() {
            self.ensure_answered(services, newest)?;
        }
        for proxy in running {
            if let Proxy::Ours(mut agent) = proxy {
                agent.stop_quietly()?;
            }
        }
        Ok(())
    }

    fn start(&self, node: &Node, kubeconfig: &Path) -> Result<Option<Proxy>> {
        match self.kind.agent() {
            proxy_kind::Agent::None | proxy_kind::Agent::Minimal { .. } => Ok(None),
            proxy_kind::Agent::KubeProxy(mode) => {
                Proxy::kube_proxy(node, kubeconfig, mode).map(Some)
            }
            proxy_kind::Agent::Ours(settings) => {
                let flag = self.rig.configuration(settings)?;
                Proxy::ours(node, kubeconfig, &[&flag]).map(Some)
            }
        }
    }

    fn ensure_answered(&self, services: &Services, newest: SocketAddr) -> Result<()> {
        let (pod, client) = (self.rig.pod(0, 0)?, self.rig.client());
        // kube-proxy reports itself healthy while it still writes rules.
        drop(wait_until_ok(PATIENCE, "the newest service is answered", || {
            Ok(pod.peer().ask(Ask::tcp(newest).within(500))?)
        })?);
        for (service, backend) in [(&services.near, "pod-a2"), (&services.far, "pod-b1")] {
            for (family, protocol) in matrix() {
                let to = service.cluster_ip(family);
                until_answered_by(pod, Ask::new(protocol, to), &[backend])?;
                let to = service.node_port(self.rig.node(0)?, family, protocol)?;
                until_answered_by(client, Ask::new(protocol, to), &[backend])?;
            }
        }
        until_answered_by(pod, Ask::tcp(newest), &["pod-b1"])
    }

    /// Replaces the servers of the tests by the servers of the benchmark.
    pub(super) fn serve(&mut self, services: &Services) -> Result<()> {
        self.servers = vec![serve(self.rig.pod(0, 1)?)?, serve(self.rig.pod(1, 0)?)?];
        for question in
            proxy_kind::questions(true).into_iter().filter(|it| self.kind.serves(it.route))
        {
            let what = format!("{} answers {question:?}", self.kind.name());
            let ask = || self.measure(question, services, Duration::from_millis(5)).map(drop);
            wait_until_ok(START, &what, ask)?;
        }
        Ok(())
    }

    /// Starts the servers of the tests again.
    pub(super) fn stop_serving(&mut self) -> Result<()> {
        if self.servers.is_empty() {
            return Ok(());
        }
        self.servers.clear();
        for backend in [self.rig.pod(0, 1)?, self.rig.pod(1, 0)?] {
            for protocol in Protocol::ALL {
                backend.peer().serve(protocol, &backend.addresses().both(), TARGET)?;
            }
        }
        Ok(())
    }

    /// Runs a generator for a while, and returns its counts.
    pub(super) fn measure(
        &self,
        question: Question,
        services: &Services,
        time: Duration,
    ) -> Result<Count> {
        let to = self.target(question, services)?;
        let from: &Member = match question.route {
            Route::PodFar => self.rig.pod(0, 0)?,
            Route::PortNear | Route::PortFar => self.rig.client(),
            Route::Loopback => self.rig.pod(1, 0)?,
        };
        let mut command = from.home().command(&env::current_exe()?)?;
        command.args(["traffic-ask", question.operation.name(), &to.to_string()]);
        command.arg(time.as_millis().to_string());
        let said = run(&mut command, "")
            .with_context(|| format!("{}, {question:?}, {to}", self.kind.name()))?;
        serde_json::from_str(&said).with_context(|| format!("the generator said {said}"))
    }

    fn target(&self, question: Question, services: &Services) -> Result<SocketAddr> {
        let Question { route, operation, family } = question;
        let protocol = if operation == Operation::Udp { Protocol::Udp } else { Protocol::Tcp };
        let (service, backend) = match route {
            Route::PodFar | Route::PortFar | Route::Loopback => {
                (&services.far, self.rig.pod(1, 0)?)
            }
            Route::PortNear => (&services.near, self.rig.pod(0, 1)?),
        };
        match (self.kind.agent(), route) {
            (proxy_kind::Agent::None, _) | (_, Route::Loopback) => {
                Ok(backend.addresses().socket(family, TARGET))
            }
            (_, Route::PodFar) => Ok(service.cluster_ip(family)),
            (_, Route::PortNear | Route::PortFar) => {
                service.node_port(self.rig.node(0)?, family, protocol)
            }
        }
    }
}

/// Routes packets between the client and a backend on node-b through node-a in both directions, as a `NodePort` of
/// node-a does.
fn same_hops(rig: &Rig) -> Result<()> {
    let (near, far, client) = (rig.node(0)?, rig.node(1)?, rig.client());
    for node in [near, far] {
        // With redirects, a node would tell its neighbours to bypass it, and plain routing would have one hop less.
        for which in ["all", "eth0"] {
            node.netns().sysctl(&format!("net.ipv4.conf.{which}.send_redirects"), "0")?;
        }
    }
    for which in ["all", "eth0"] {
        client.netns().sysctl(&format!("net.ipv6.conf.{which}.accept_redirects"), "0")?;
    }
    for family in Family::ALL {
        let length = if family == Family::V4 { 32 } else { 128 };
        let [backend, host] = [rig.pod(1, 0)?.ip(family), near.ip(family)];
        client.netns().ip(&format!("route add {backend}/{length} via {host}"))?;
        far.netns().ip(&format!("route add {}/{length} via {host}", client.ip(family)))?;
    }
    Ok(())
}

fn serve(backend: &Member) -> Result<Program> {
    for protocol in Protocol::ALL {
        backend.peer().stop_serving(protocol, &backend.addresses().both(), TARGET)?;
    }
    let mut command = backend.home().command(&env::current_exe()?)?;
    command.arg("traffic-serve");
    for family in Family::ALL {
        command.arg(backend.addresses().socket(family, TARGET).to_string());
    }
    Program::spawn("server", command, Path::new("/dev/null"))
}
