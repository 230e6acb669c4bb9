//! A topology with an agent on every node and a server in every member: the start of most tests.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::agent::{Agent, Source};
use crate::manifest::{Manifests, Service};
use crate::topology::{Builder, Member, Node, Pod, Topology};
use crate::traffic::{Answer, Ask, Failure, Protocol};
use crate::wait::{wait_until, wait_until_ok};

mod asking;
mod masqueraded;
mod one_port;
mod shared;

pub(crate) use asking::IMPATIENT;
pub use asking::{
    all_dropped, answered_by, answered_outside, ask, askers, different_servers, dropped, exchange,
    longer, matrix, refused, servers, until, until_within,
};
pub use masqueraded::{ask_masqueraded, masquerade, masquerade_no_more};
pub use one_port::{from_one_port, unused_port};
pub use shared::Shared;

/// The port that every server of a rig listens at.
pub const TARGET: u16 = 8_080;

/// A topology with agents that serve Services.
#[derive(Debug)]
pub struct Rig {
    // Dropped in this order: agents before the nodes that they run on.
    agents: Vec<Agent>,
    topology: Topology,
    manifests: Manifests,
}

impl Rig {
    /// Builds the topology and starts the servers, without agents.
    pub fn build(builder: Builder) -> Result<Self> {
        let topology = builder.build()?;
        let manifests = Manifests::new(&topology.directory("rig")?)?;
        for member in topology.members() {
            serve(member)?;
        }
        topology.nodes().iter().try_for_each(|node| manifests.node(node))?;
        Ok(Self { agents: Vec::new(), topology, manifests })
    }

    /// Starts an agent on every node; each has programmed `services` when this returns.
    pub fn start(mut self, services: &[&Service]) -> Result<Self> {
        services.iter().try_for_each(|service| self.manifests.apply(service))?;
        self.start_agents(&[])?;
        Ok(self)
    }

    /// Starts an agent with additional flags on every node.
    pub fn start_agents(&mut self, flags: &[&str]) -> Result<()> {
        let directory = self.manifests.directory().to_owned();
        self.start_agents_from(Source::Manifests(&directory), flags)
    }

    /// Starts an agent with additional flags on every node, with `source` as the source of its objects.
    pub fn start_agents_from(&mut self, source: Source<'_>, flags: &[&str]) -> Result<()> {
        let nodes = self.topology.nodes().iter().map(|node| (node, source));
        self.agents = Agent::start_all(nodes, flags)?;
        Ok(())
    }

    /// Returns the external client.
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

    /// Removes the agent of node `index` (counted from 0) from the rig, so that a test can stop and restart it.
    pub fn take_agent(&mut self, index: usize) -> Result<Agent> {
        ensure!(index < self.agents.len(), "no agent {index}");
        Ok(self.agents.remove(index))
    }

    /// Gives an agent back to the rig, after the agents that the rig has.
    pub fn give_agent(&mut self, agent: Agent) {
        self.agents.push(agent);
    }

    /// Stops all agents, and removes their data paths and logs.
    pub fn clear_agents(&mut self) -> Result<()> {
        self.agents.drain(..).try_for_each(Agent::clear)
    }

    /// Returns the topology.
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Adds a pod with its servers to node `index` (counted from 0) at run time.
    pub fn add_pod(&mut self, index: usize) -> Result<&Pod> {
        let pod = self.topology.add_pod(index)?;
        serve(pod)?;
        Ok(pod)
    }

    /// Returns the manifests that the agents watch.
    pub const fn manifests(&self) -> &Manifests {
        &self.manifests
    }

    /// Writes an `AgentConfiguration` with these lines, and returns the flag that names its file.
    pub fn configuration(&self, lines: &str) -> Result<String> {
        let file = self.topology.directory("configuration")?.join("agent.yaml");
        let text = format!("apiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\n{lines}\n");
        fs::write(&file, text).with_context(|| format!("configuration {}", file.display()))?;
        Ok(format!("--config={}", file.display()))
    }

    /// Waits until the maps of every agent agree with the manifests. Packets may follow a change before the agent has
    /// finished it.
    pub fn until_programmed(&self) -> Result<()> {
        let directory = self.manifests.directory().display().to_string();
        self.agents.iter().try_for_each(|agent| {
            wait_until_ok(asking::CHANGE, "maps are what manifests say", || {
                agent.command(&["lb", "diff", "--manifests", &directory]).map(drop)
            })
        })
    }

    /// Waits until no TCP connection is being closed: servers close asynchronously, and the packets of that would
    /// change the counters.
    pub fn until_closed(&self) -> Result<()> {
        let members = self.topology.members();
        wait_until(asking::CHANGE, "connections are closed", || {
            members.iter().all(|member| member.is_quiet().unwrap_or(false)).then_some(())
        })
    }

    /// Changes a Service, and waits until the answer to `from` satisfies `expected`.
    pub fn change(
        &self,
        service: &Service,
        from: &Member,
        ask: Ask,
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

/// Makes two tests of each function: one with routed pods and one with bridged pods.
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
