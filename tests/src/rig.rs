//! A topology with an agent on every node and a server in every member: where most tests begin.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::agent::{Agent, Source};
use crate::manifest::{Manifests, Service};
use crate::topology::{Builder, Family, Member, Node, Pod, Topology};
use crate::traffic::{Answer, Ask, Failure, Protocol};
use crate::wait::wait_until;

mod shared;

pub use shared::Shared;

/// The port that every server of a rig listens at.
pub const TARGET: u16 = 8_080;
/// How long a change may take until packets follow it: an eternity beside the milliseconds it takes.
const CHANGE: Duration = Duration::from_secs(5);
/// Milliseconds of patience of one question of a wait: it is asked again.
pub(crate) const IMPATIENT: u64 = 500;

/// How long a refusal may take: less than the second after which a SYN is sent again.
const AT_ONCE: Duration = Duration::from_millis(800);

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
        let manifests = Manifests::new(&topology.folder("rig")?)?;
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
        let folder = self.manifests.folder().to_owned();
        self.start_agents_from(Source::Manifests(&folder), flags)
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

/// Waits until what `from` is answered satisfies `expected`.
pub fn until(
    from: &Member,
    ask: Ask,
    expected: impl Fn(&Result<Answer, Failure>) -> bool,
) -> Result<()> {
    until_within(CHANGE, from, ask, expected)
}

/// The same for a change that may take longer.
pub fn until_within(
    patience: Duration,
    from: &Member,
    ask: Ask,
    expected: impl Fn(&Result<Answer, Failure>) -> bool,
) -> Result<()> {
    let mut last = None;
    let found = wait_until(patience, "the change reaches packets", || {
        let outcome = from.peer().ask(ask.within(IMPATIENT));
        let found = expected(&outcome).then_some(());
        last = Some(outcome);
        found
    });
    found.with_context(|| {
        format!("{} asks {} by {}: last {last:?}", from.name(), ask.to, ask.protocol)
    })
}

/// Every family with every transport.
pub fn matrix() -> impl Iterator<Item = (Family, Protocol)> {
    Family::ALL.into_iter().flat_map(|family| Protocol::ALL.map(|protocol| (family, protocol)))
}

/// Who asks a Service, and what: a pod and the host of node-a its `ClusterIP`, the client outside its `NodePort`; in
/// both families and by both transports.
pub fn askers<'a>(
    rig: &'a Rig,
    service: &Service,
    node_port: u16,
) -> Result<Vec<(&'a Member, Ask)>> {
    let mut askers: Vec<(&Member, Ask)> = Vec::new();
    for (family, protocol) in matrix() {
        let outside = Ask::new(protocol, rig.node(0)?.addresses().socket(family, node_port));
        let inside = Ask::new(protocol, service.frontend(family));
        askers.extend([(&**rig.pod(0, 0)?, inside), (&**rig.node(0)?, inside)]);
        askers.push((rig.client(), outside));
    }
    Ok(askers)
}

/// Asks, and fails with the whole question in words when there is no answer.
pub fn ask(from: &Member, ask: Ask) -> Result<Answer> {
    from.peer().ask(ask).with_context(|| {
        format!(
            "{} asks {} through {}, connected: {}",
            from.name(),
            ask.to,
            ask.protocol,
            ask.connected
        )
    })
}

/// Asks, and fails unless the answer is a quick "refused": what an unusable service must say.
pub fn refused(from: &Member, ask: Ask) -> Result<()> {
    let start = Instant::now();
    let outcome = from.peer().ask(ask);
    let (name, took) = (from.name(), start.elapsed());
    let what =
        format!("{name} asks {} through {}, connected: {}", ask.to, ask.protocol, ask.connected);
    ensure!(outcome == Err(Failure::Refused), "{what}: {outcome:?}, not refused");
    ensure!(took < AT_ONCE, "{what}: refused only after {took:?}");
    Ok(())
}

/// Asks, and fails unless nothing comes back: what a policy that drops looks like.
pub fn dropped(from: &Member, ask: Ask) -> Result<()> {
    let outcome = from.peer().ask(ask.within(400));
    let what = format!("{} asks {} through {}", from.name(), ask.to, ask.protocol);
    ensure!(outcome == Err(Failure::TimedOut), "{what}: {outcome:?}, not silence");
    Ok(())
}

/// Asks `times` times, and returns who answered; every question must be answered.
pub fn servers(from: &Member, ask: Ask, times: u32) -> Result<BTreeSet<String>> {
    let tally = from.peer().ask_many(ask, times)?;
    let what = format!("{} asks {} through {}", from.name(), ask.to, ask.protocol);
    ensure!(tally.failed() == 0, "{what}: {tally:?}");
    Ok(tally.servers.into_keys().collect())
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
