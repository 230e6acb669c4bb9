//! A topology with an agent on every node and a server in every member: the start of most tests.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::agent::{Agent, Source};
use crate::manifest::{Manifests, Service};
use crate::topology::{Builder, Member, Node, Pod, Topology};
use crate::traffic::{Answer, Ask, Failure, Protocol};
use crate::wait::{wait_until, wait_until_ok};

mod asking;
mod shared;

pub(crate) use asking::IMPATIENT;
pub use asking::{
    all_dropped, answered_by, ask, askers, different_servers, dropped, matrix, refused, servers,
    until, until_within,
};
pub use shared::Shared;

/// The port that every server of a rig listens at.
pub const TARGET: u16 = 8_080;

/// A cluster that answers Services.
#[derive(Debug)]
pub struct Rig {
    // Dropped in this order: agents before the nodes that they are on.
    agents: Vec<Agent>,
    topology: Topology,
    manifests: Manifests,
}

impl Rig {
    /// Builds a cluster without an agent yet.
    pub fn build(builder: Builder) -> Result<Self> {
        let topology = builder.build()?;
        let manifests = Manifests::new(&topology.directory("rig")?)?;
        for member in topology.members() {
            serve(member)?;
        }
        topology.nodes().iter().try_for_each(|node| manifests.node(node))?;
        Ok(Self { agents: Vec::new(), topology, manifests })
    }

    /// Starts an agent on every node, which knows of `services` when this returns.
    pub fn start(mut self, services: &[&Service]) -> Result<Self> {
        services.iter().try_for_each(|service| self.manifests.apply(service))?;
        self.start_agents(&[])?;
        Ok(self)
    }

    /// Starts an agent on every node with more flags.
    pub fn start_agents(&mut self, flags: &[&str]) -> Result<()> {
        let directory = self.manifests.directory().to_owned();
        self.start_agents_from(Source::Manifests(&directory), flags)
    }

    /// Starts an agent on every node that learns of Services from `source`, with more flags.
    pub fn start_agents_from(&mut self, source: Source<'_>, flags: &[&str]) -> Result<()> {
        let nodes = self.topology.nodes().iter();
        // All at once: they do not know each other.
        self.agents = nodes.map(|node| Agent::spawn(node, source, flags)).collect::<Result<_>>()?;
        self.agents.iter_mut().try_for_each(Agent::wait_ready)
    }

    /// Returns the client outside.
    pub const fn client(&self) -> &Member {
        self.topology.client()
    }

    /// Returns node `index`, counted from 0.
    pub fn node(&self, index: usize) -> Result<&Node> {
        self.topology.node(index)
    }

    /// Returns pod `index` of node `node`, both counted from 0.
    pub fn pod(&self, node: usize, index: usize) -> Result<&Pod> {
        self.topology.node(node)?.pod(index)
    }

    /// Returns all pods of all nodes.
    pub fn pods(&self) -> Vec<&Pod> {
        self.topology.nodes().iter().flat_map(Node::pods).collect()
    }

    /// Returns the agent of node `index`, counted from 0.
    pub fn agent(&self, index: usize) -> Result<&Agent> {
        self.agents.get(index).with_context(|| format!("no agent {index}"))
    }

    /// Hands over the agent of node `index`, counted from 0, to be ended and started again.
    pub fn take_agent(&mut self, index: usize) -> Result<Agent> {
        ensure!(index < self.agents.len(), "no agent {index}");
        Ok(self.agents.remove(index))
    }

    /// Returns the cluster.
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Adds a pod with its servers to node `index`, counted from 0, while everything runs.
    pub fn add_pod(&mut self, index: usize) -> Result<&Pod> {
        let pod = self.topology.add_pod(index)?;
        serve(pod)?;
        Ok(pod)
    }

    /// Returns the manifests that the agents watch.
    pub const fn manifests(&self) -> &Manifests {
        &self.manifests
    }

    /// Writes a configuration of the agent with these lines, and returns the flag that names it.
    pub fn configuration(&self, lines: &str) -> Result<String> {
        let file = self.topology.directory("configuration")?.join("agent.yaml");
        let text = format!("apiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\n{lines}\n");
        fs::write(&file, text).with_context(|| format!("configuration {}", file.display()))?;
        Ok(format!("--config={}", file.display()))
    }

    /// Waits until the maps of every agent are what the manifests say: who was seen to follow a change may be in the
    /// middle of it.
    pub fn until_programmed(&self) -> Result<()> {
        let directory = self.manifests.directory().display().to_string();
        self.agents.iter().try_for_each(|agent| {
            wait_until_ok(asking::CHANGE, "maps are what manifests say", || {
                agent.command(&["lb", "diff", "--manifests", &directory]).map(drop)
            })
        })
    }

    /// Waits until nobody is about to close a connection: servers do so when they come to it, and packets of that are
    /// counted as others are.
    pub fn until_closed(&self) -> Result<()> {
        let members = self.topology.members();
        wait_until(asking::CHANGE, "connections are closed", || {
            members.iter().all(|member| member.is_quiet().unwrap_or(false)).then_some(())
        })
    }

    /// Changes a service, and waits until what `from` is answered satisfies `expected`.
    pub fn change(
        &self,
        service: &Service,
        (from, ask): (&Member, Ask),
        expected: impl Fn(&Result<Answer, Failure>) -> bool,
    ) -> Result<()> {
        self.manifests.apply(service)?;
        until(from, ask, expected)
    }
}

fn serve(member: &Member) -> Result<()> {
    for protocol in Protocol::ALL {
        member.peer().serve(protocol, &member.addresses().both(), TARGET)?;
    }
    Ok(())
}

/// Makes two tests of each function: with routed pods and with bridged pods.
#[macro_export]
macro_rules! in_both_shapes {
    ($($name:ident),+ $(,)?) => {$(
        mod $name {
            #[test]
            fn with_routed_pods() -> anyhow::Result<()> {
                super::$name($crate::topology::Shape::Routed)
            }

            #[test]
            fn with_bridged_pods() -> anyhow::Result<()> {
                super::$name($crate::topology::Shape::Bridged)
            }
        }
    )+};
}
