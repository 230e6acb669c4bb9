//! A topology with one proxy on `node-a`, or on both nodes: the real kube-proxy or our agent, with the same
//! configuration file.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::question::{Case, Outcome, PORT, Policy, Seen, Source, State, at_most, number};
use super::routes::lead_to_node_a;
use super::setup::{NATIVE, Proxy, Setup};
use super::shared_api_server::SharedApiServer;
use crate::agent::{Agent, Source as Objects};
use crate::control_plane::kube_proxy::{KubeProxy, Mode, Options};
use crate::join_all::join_all;
use crate::rig::Rig;
use crate::topology::{Family, Member, Node, Pod, Shape, Topology, address};
use crate::traffic::survey::{Ending, Inquiry};
use crate::traffic::{Ask, Failure};
use crate::wait::wait_until;

/// The deadline for packets to follow the first Services after a start.
const START: Duration = Duration::from_secs(90);
/// kube-proxy's `minSyncPeriod`. Its default is a second, for which each change of a test would have to wait.
const BREATH: Duration = Duration::from_millis(100);

/// A world that runs: a node, and the proxy that serves it.
#[derive(Debug)]
pub struct World {
    // Dropped in this order: the proxies before their nodes.
    proxy: Running,
    other: Option<Running>,
    rig: Rig,
    setup: Setup,
}

#[derive(Debug)]
enum Running {
    KubeProxy(#[expect(dead_code, reason = "ends with the world")] KubeProxy),
    Ours(Agent),
}

impl Running {
    /// Starts the proxy of a setup on a node, and returns when it has programmed the existing Services.
    fn start(node: &Node, setup: &Setup, server: &SharedApiServer) -> Result<Self> {
        let kubeconfig = server.control_plane().kubeconfig();
        let fields = setup.fields();
        let mode = match setup.proxy {
            Proxy::KubeProxy(mode) => mode,
            Proxy::Ours | Proxy::OursMasquerading => Mode::Nftables,
        };
        let options = Options {
            more: Some(&fields),
            min_sync_period: BREATH,
            ..Options::new(node.netns().name(), mode, &kubeconfig, node.name())
        };
        if setup.is_kube_proxy() {
            return Ok(Self::KubeProxy(KubeProxy::start(&options)?));
        }
        let file = node.directory().join("config.yaml");
        let documents = [options.configuration(), setup.agent()];
        fs::write(&file, documents.join("\n---\n") + "\n")
            .with_context(|| format!("configuration {}", file.display()))?;
        let config = file.to_string_lossy();
        let source = Objects::Kubeconfig(&kubeconfig);
        Ok(Self::Ours(Agent::start(node, source, &["--config", &config])?))
    }
}

impl World {
    /// Builds the topology, starts the proxy, and returns when packets follow the Services of the matrix.
    pub fn start(setup: Setup, server: &SharedApiServer) -> Result<Self> {
        let builder = Topology::builder(setup.shape);
        // XDP leaves packets with a partial checksum to tc, and redirects only where the other end of a veth polls.
        let has_xdp = setup.has(NATIVE);
        let builder = if has_xdp { builder.without_checksum_offload().polling() } else { builder };
        let rig = Rig::build(builder)?;
        server.connect(rig.topology().fabric())?;
        lead_to_node_a(&rig)?;
        if setup.shape == Shape::Bridged {
            // With br_netfilter, kube-proxy's hairpin packets leave by the bridge port on which they arrived. CNI
            // plugins allow that (hairpin mode).
            let devices = rig.node(0)?.pods().iter().map(Pod::device);
            let allowed =
                devices.map(|device| format!("link set {device} type bridge_slave hairpin on"));
            rig.node(0)?.netns().ip(&allowed.collect::<Vec<_>>().join("\n"))?;
        }
        let proxy = Running::start(rig.node(0)?, &setup, server)?;
        let world = Self { proxy, other: None, rig, setup };
        world.wait_until_programmed()?;
        Ok(world)
    }

    /// As [`World::start`], with the same proxy on `node-b` as well.
    pub fn start_on_both_nodes(setup: Setup, server: &SharedApiServer) -> Result<Self> {
        let mut world = Self::start(setup, server)?;
        world.other = Some(Running::start(world.rig.node(1)?, &world.setup, server)?);
        Ok(world)
    }

    /// Returns the setup that the world was started with.
    pub const fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Returns the topology with its members.
    pub const fn rig(&self) -> &Rig {
        &self.rig
    }

    /// Returns our agent of `node-a`, if it is the proxy.
    pub const fn agent(&self) -> Option<&Agent> {
        match &self.proxy {
            Running::Ours(agent) => Some(agent),
            Running::KubeProxy(_) => None,
        }
    }

    /// Returns the member for a kind of client.
    pub fn member(&self, source: Source) -> Result<&Member> {
        Ok(match source {
            Source::Pod => self.rig.pod(0, 0)?,
            Source::Backend => self.rig.pod(0, 1)?,
            Source::Host => self.rig.node(0)?,
            Source::Outside => self.rig.client(),
            Source::OtherPod => self.rig.pod(1, 0)?,
            Source::OtherNode => self.rig.node(1)?,
        })
    }

    /// Returns the `ClusterIP`s of the first Service, which has a backend on each node.
    pub fn first_service() -> Result<[SocketAddr; 2]> {
        let first = address::cluster_ip(number(Policy::Cluster, State::Both))?;
        Ok(Family::ALL.map(|family| first.socket(family, PORT)))
    }

    /// Waits until the first Service is answered in both families.
    fn wait_until_programmed(&self) -> Result<()> {
        for first in Self::first_service()? {
            let ask = Ask::tcp(first).within(500);
            let asker = self.member(Source::Pod)?;
            let answered = || asker.peer().ask(ask).ok().map(drop);
            wait_until(START, "the proxy answers its first Service", answered)
                .with_context(|| format!("{:?}", self.setup))?;
        }
        Ok(())
    }

    /// Returns the servers that answer a client of all these addresses, each asked `times` times; any failure is an
    /// error.
    pub fn servers(&self, source: Source, asks: &[Ask], times: u32) -> Result<BTreeSet<String>> {
        let inquiry = |ask: &Ask| Inquiry { ask: *ask, outcomes: usize::MAX, times };
        let endings = self.member(source)?.peer().survey(asks.iter().map(inquiry).collect())?;
        let all = endings.into_iter().flatten();
        all.map(|(ending, _)| match ending {
            Ending::Answered { server, .. } => Ok(server),
            Ending::Failed(failure) => Err(failure.into()),
        })
        .collect()
    }

    /// Asks the questions of all cases, and returns the outcome of each, in order.
    pub fn ask(&self, cases: &[Case]) -> Result<Vec<Outcome>> {
        let inquiries: Vec<(Source, Inquiry)> = cases
            .iter()
            .map(|case| {
                let (times, patience) = at_most(&case.expected);
                let ask = Ask::new(case.protocol, case.to).within(patience);
                let outcomes = case.expected.len().max(2);
                (case.source, Inquiry { ask, outcomes, times })
            })
            .collect();
        let mut all: Vec<Option<Outcome>> = vec![None; cases.len()];
        let inquiries = &inquiries;
        let answered =
            join_all(Source::ALL.map(|source| move || self.ask_from(source, inquiries)))?;
        for (index, outcome) in answered.into_iter().flatten() {
            if let Some(place) = all.get_mut(index) {
                *place = Some(outcome);
            }
        }
        let all: Vec<Outcome> = all.into_iter().flatten().collect();
        ensure!(all.len() == cases.len(), "{} of {} cases were asked", all.len(), cases.len());
        Ok(all)
    }

    fn ask_from(
        &self,
        source: Source,
        inquiries: &[(Source, Inquiry)],
    ) -> Result<Vec<(usize, Outcome)>> {
        let ours = inquiries.iter().enumerate().filter(|(_, (from, _))| *from == source);
        let (places, mine): (Vec<usize>, Vec<Inquiry>) =
            ours.map(|(index, (_, inquiry))| (index, inquiry.clone())).unzip();
        let endings = self.member(source)?.peer().survey(mine)?;
        let outcome = |endings: Vec<(Ending, u32)>| {
            endings.into_iter().map(|(ending, _)| seen(ending)).collect::<Outcome>()
        };
        Ok(places.into_iter().zip(endings.into_iter().map(outcome)).collect())
    }
}

fn seen(ending: Ending) -> Seen {
    match ending {
        Ending::Answered { server, saw } => Seen::Answer(server, saw),
        Ending::Failed(Failure::Refused | Failure::RefusedLate) => Seen::Refused,
        Ending::Failed(Failure::TimedOut) => Seen::Silence,
        Ending::Failed(Failure::NotPermitted) => Seen::NotPermitted,
        Ending::Failed(failure) => Seen::Other(failure.to_string()),
    }
}
