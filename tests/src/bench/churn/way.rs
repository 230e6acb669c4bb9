//! What runs on the node while things change: our agent, or the real kube-proxy.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;

use super::super::memory;
use super::probe;
use crate::agent::{Agent, Source};
use crate::control_plane::kube_proxy::{KubeProxy, Mode, Options};
use crate::rig::Rig;
use crate::wait::wait_until_ok;

/// How long a start may take: kube-proxy reads and writes 10,000 services.
const PATIENCE: Duration = Duration::from_mins(5);
/// Everything pods have addresses from.
const PODS: &str = "10.244.0.0/16,fd00:244::/32";

/// Who serves Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The agent that `LB_AGENT` names.
    Ours,
    /// kube-proxy with nftables, as it comes.
    Nftables,
}

/// It runs.
pub(super) struct Running<'a> {
    rig: &'a Rig,
    what: What,
}

enum What {
    Ours(Box<Agent>),
    Nftables(Box<KubeProxy>),
}

/// What was found of it while it ran.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Anonymous memory of the process, in bytes.
    pub(super) anonymous: u64,
    /// What its maps have of the kernel's, in bytes; unknown of nftables.
    pub(super) maps: Option<u64>,
}

impl Way {
    /// In the order of a round.
    pub(super) const ALL: [Self; 2] = [Self::Ours, Self::Nftables];

    /// Its name in results.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Nftables => "kube-proxy-nftables",
        }
    }

    /// Starts it on the first node; returns how long it took until `newest` was answered by `server`.
    pub(super) fn start<'a>(
        self,
        rig: &'a Rig,
        kubeconfig: &Path,
        (newest, server): (SocketAddr, &str),
    ) -> Result<(Running<'a>, Duration)> {
        let (node, pod) = (rig.node(0)?, rig.pod(0, 0)?);
        // The kernel takes its time to detach what served before.
        wait_until_ok(PATIENCE, "nobody serves yet", || {
            ensure!(!pod.home().run_in(|| probe::is_answered(newest))??, "{newest} is answered");
            Ok(())
        })?;
        let began = Instant::now();
        let what = match self {
            Self::Ours => {
                What::Ours(Box::new(Agent::spawn(node, Source::Kubeconfig(kubeconfig), &[])?))
            }
            Self::Nftables => {
                let netns = node.netns().name();
                let options = Options::new(netns, Mode::Nftables, kubeconfig, node.name());
                let options = Options { cluster_cidr: Some(PODS), ..options };
                What::Nftables(Box::new(KubeProxy::spawn(&options)?))
            }
        };
        let running = Running { rig, what };
        let wait = || probe::until_answered_by(newest, server, PATIENCE);
        let answered = pod.home().run_in(wait)?;
        let answered = answered.with_context(|| format!("{} serves", self.name()))?;
        Ok((running, answered - began))
    }
}

impl Running<'_> {
    /// What it takes now.
    pub(super) fn memory(&self) -> Result<Memory> {
        match &self.what {
            What::Ours(agent) => {
                let pins = self.rig.node(0)?.bpf().join(LAYOUT).join("maps");
                let maps = Some(memory::of_maps(&pins)?);
                Ok(Memory { anonymous: memory::settled(agent.id())?, maps })
            }
            What::Nftables(proxy) => {
                Ok(Memory { anonymous: memory::settled(proxy.id())?, maps: None })
            }
        }
    }

    /// Ends it, and takes back what it programmed.
    pub(super) fn end(self) -> Result<()> {
        match self.what {
            What::Ours(mut agent) => {
                agent.stop_quietly()?;
                drop(agent.command(&["cleanup"])?);
            }
            What::Nftables(proxy) => {
                drop(proxy);
                drop(self.rig.node(0)?.netns().tool("nft", &["flush", "ruleset"])?);
            }
        }
        Ok(())
    }
}
