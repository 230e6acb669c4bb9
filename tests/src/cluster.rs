//! A rig whose Services come from a real API server: a control plane, Node objects, and an agent on every node.
//!
//! The control plane lives in the namespace of the segments, like a separate machine; agents reach it over the wire.
//! The API server chooses addresses and port numbers, and the tests read them back.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::agent::Source;
use crate::control_plane::{self, ControlPlane, Options};
use crate::rig::{IMPATIENT, Rig, longer, matrix, servers, until_within};
use crate::topology::{Builder, Family, Member, Node, Segment, Shape, Topology};
use crate::traffic::{Answer, Ask, Failure};
use crate::wait::wait_until_ok;

mod lasting;
mod outage;
mod service;
mod shared;
mod traffic;

pub use lasting::{Lasting, Sizes};
pub use outage::{Outage, is_soon};
pub use service::{Published, slices_of};
pub use shared::Shared;
pub use traffic::Traffic;

/// The deadline for a change to reach packets from kubectl through controllers and agents, on a machine that also
/// compiles.
const SOON: Duration = Duration::from_secs(90);
/// The number of questions that shows all servers: of three servers, one is missed about once in a hundred thousand
/// times.
const QUESTIONS: u32 = 30;

/// A cluster with a real control plane.
#[derive(Debug)]
pub struct Cluster {
    // Dropped in this order: the processes in a namespace before the namespaces.
    control_plane: ControlPlane,
    rig: Rig,
}

impl Cluster {
    /// Starts a control plane, creates the Node objects, and starts an agent on each node.
    pub fn start(shape: Shape) -> Result<Self> {
        let mut cluster = Self::without_agents(shape)?;
        cluster.start_agents()?;
        Ok(cluster)
    }

    fn start_agents(&mut self) -> Result<()> {
        let kubeconfig = self.control_plane.kubeconfig();
        self.rig.start_agents_from(Source::Kubeconfig(&kubeconfig), &[])
    }

    /// Starts a control plane and creates the Node objects; no node serves Services yet.
    pub fn without_agents(shape: Shape) -> Result<Self> {
        Self::in_topology(Topology::builder(shape))
    }

    /// As [`Cluster::without_agents`], in any topology.
    pub fn in_topology(topology: Builder) -> Result<Self> {
        let rig = Rig::build(topology)?;
        let control_plane = ControlPlane::start(Options {
            netns: Some(rig.topology().fabric().name().to_owned()),
            address: Segment::First.gateway()?.of(Family::V4),
            ..Options::default()
        })?;
        rig.topology().nodes().iter().try_for_each(|node| register(&control_plane, node))?;
        Ok(Self { control_plane, rig })
    }

    /// Returns the control plane.
    pub const fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// Returns the topology with its members and agents.
    pub const fn rig(&self) -> &Rig {
        &self.rig
    }

    /// Returns the topology with its members and agents, mutably, so that an agent can be taken out.
    pub const fn rig_mut(&mut self) -> &mut Rig {
        &mut self.rig
    }

    /// Returns both parts. The control plane must be dropped before the rig, whose namespaces it lives in.
    pub fn into_parts(self) -> (ControlPlane, Rig) {
        (self.control_plane, self.rig)
    }

    /// Borrows both parts, so that a test can stop and start the control plane while the members talk.
    pub const fn split(&mut self) -> (&mut ControlPlane, &Rig) {
        (&mut self.control_plane, &self.rig)
    }

    /// Returns all clients of a Service with their questions: a pod and the host of node-a use the `ClusterIP`, the
    /// external client uses the `NodePort` of both nodes; with every transport and both families.
    pub fn askers(&self, service: &Published) -> Result<Vec<(&Member, Ask)>> {
        askers(&self.rig, service)
    }

    /// Waits until every client of a Service gets answers from exactly these servers.
    pub fn until_answered_by(&self, service: &Published, expected: &[&str]) -> Result<()> {
        let askers = self.askers(service)?;
        askers.into_iter().try_for_each(|(from, ask)| until_answered_by(from, ask, expected))
    }
}

/// As [`Cluster::askers`], for a rig without its cluster.
pub fn askers<'a>(rig: &'a Rig, service: &Published) -> Result<Vec<(&'a Member, Ask)>> {
    let mut askers: Vec<(&Member, Ask)> = Vec::new();
    for (family, protocol) in matrix() {
        let cluster_ip = Ask::new(protocol, service.cluster_ip(family));
        askers.push((rig.pod(0, 0)?, cluster_ip));
        askers.push((rig.node(0)?, cluster_ip));
        for node in rig.topology().nodes() {
            let node_port = service.node_port(node, family, protocol)?;
            askers.push((rig.client(), Ask::new(protocol, node_port)));
        }
    }
    Ok(askers)
}

/// Waits until `from` gets answers from exactly these servers.
pub fn until_answered_by(from: &Member, ask: Ask, expected: &[&str]) -> Result<()> {
    let what = format!("{} asks {} by {}: {expected:?}", from.name(), ask.to, ask.protocol);
    let mut within = 0;
    wait_until_ok(SOON, &what, || {
        within = longer(within, IMPATIENT);
        let question = ask.within(within);
        // One question before the others: thirty questions that time out would take long.
        drop(from.peer().ask(question)?);
        let found = servers(from, question, QUESTIONS)?;
        ensure!(found.iter().eq(expected), "{found:?} answered");
        Ok(())
    })
}

/// Waits until the outcome of a question of `from` satisfies `expected`.
pub fn until(
    from: &Member,
    ask: Ask,
    expected: impl Fn(&Result<Answer, Failure>) -> bool,
) -> Result<()> {
    until_within(SOON, from, ask, expected)
}

fn register(control_plane: &ControlPlane, node: &Node) -> Result<()> {
    let addresses = node.addresses().both().map(|address| address.to_string());
    let ranges = node.pod_ranges();
    control_plane.node(&control_plane::Node {
        name: node.name(),
        addresses: &addresses.each_ref().map(String::as_str),
        pod_cidrs: &ranges.each_ref().map(String::as_str),
        labels: &[("kubernetes.io/hostname", node.name())],
    })
}
