//! The proxies that `bench churn` compares: our agent, and the real kube-proxy.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_agent::datapath::LAYOUT;
use lb_tests::control_plane::kube_proxy::Mode;
use lb_tests::rig::Rig;
use lb_tests::wait::wait_until_ok;

use super::super::memory;
use super::super::proxy::Proxy;
use super::probe;

/// The deadline for a start: kube-proxy reads and writes 10,000 services.
const PATIENCE: Duration = Duration::from_mins(5);

/// A proxy that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProxyKind {
    /// The agent that `LB_AGENT` names.
    Ours,
    /// kube-proxy in mode nftables, with its default settings.
    Nftables,
}

pub(super) struct Running<'a> {
    rig: &'a Rig,
    proxy: Proxy,
}

/// The memory of a proxy while it runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Anonymous memory of the process, in bytes.
    pub(super) anonymous: u64,
    /// The kernel memory of its maps, in bytes; unknown for nftables.
    pub(super) maps: Option<u64>,
}

impl ProxyKind {
    /// All proxies, in the order of a round.
    pub(super) const ALL: [Self; 2] = [Self::Ours, Self::Nftables];

    /// The name in results.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Nftables => "kube-proxy-nftables",
        }
    }

    /// Starts the proxy on the first node; returns the time until `server` answered at `newest`.
    pub(super) fn start<'a>(
        self,
        rig: &'a Rig,
        kubeconfig: &Path,
        newest: SocketAddr,
        server: &str,
    ) -> Result<(Running<'a>, Duration)> {
        let (node, pod) = (rig.node(0)?, rig.pod(0, 0)?);
        // The kernel detaches the programs of the previous proxy asynchronously.
        wait_until_ok(PATIENCE, "the previous proxy no longer answers", || {
            ensure!(!pod.home().run_in(|| probe::is_answered(newest))??, "{newest} is answered");
            Ok(())
        })?;
        let began = Instant::now();
        let proxy = match self {
            Self::Ours => Proxy::ours(node, kubeconfig, &[])?,
            Self::Nftables => Proxy::kube_proxy(node, kubeconfig, Mode::Nftables)?,
        };
        let running = Running { rig, proxy };
        let wait = || probe::until_answered_by(newest, server, PATIENCE);
        let answered = pod.home().run_in(wait)?;
        let answered = answered.with_context(|| format!("{} serves", self.name()))?;
        Ok((running, answered - began))
    }
}

impl Running<'_> {
    /// Returns the memory that the proxy uses now.
    pub(super) fn memory(&self) -> Result<Memory> {
        match &self.proxy {
            Proxy::Ours(agent) => {
                let pins = self.rig.node(0)?.bpf().join(LAYOUT).join("maps");
                let maps = Some(memory::of_maps(&pins)?);
                Ok(Memory { anonymous: memory::stable(agent.id())?, maps })
            }
            Proxy::KubeProxy(proxy) => {
                Ok(Memory { anonymous: memory::stable(proxy.id())?, maps: None })
            }
        }
    }

    /// Stops the proxy and removes what it programmed.
    pub(super) fn end(self) -> Result<()> {
        match self.proxy {
            Proxy::Ours(mut agent) => {
                agent.stop_quietly()?;
                drop(agent.command(&["cleanup"])?);
            }
            Proxy::KubeProxy(proxy) => {
                drop(proxy);
                drop(self.rig.node(0)?.netns().tool("nft", &["flush", "ruleset"])?);
            }
        }
        Ok(())
    }
}
