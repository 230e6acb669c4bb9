//! The proxy of a node in a benchmark: our agent, or the real kube-proxy.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use lb_tests::agent::{Agent, Source};
use lb_tests::control_plane::kube_proxy::{KubeProxy, Mode, Options};
use lb_tests::topology::Node;
use lb_tests::topology::address::CLUSTER_CIDR;
use lb_tests::wait::try_wait_until;

pub(super) enum Proxy {
    Ours(Box<Agent>),
    KubeProxy(Box<KubeProxy>),
}

impl Proxy {
    /// Starts the agent that `LB_AGENT` names, and returns at once.
    pub(super) fn ours(node: &Node, kubeconfig: &Path, flags: &[&str]) -> Result<Self> {
        let agent = Agent::spawn(node, Source::Kubeconfig(kubeconfig), flags)?;
        Ok(Self::Ours(Box::new(agent)))
    }

    /// Starts kube-proxy with its default settings, and returns at once.
    pub(super) fn kube_proxy(node: &Node, kubeconfig: &Path, mode: Mode) -> Result<Self> {
        let proxy = KubeProxy::spawn(&Options {
            cluster_cidr: Some(CLUSTER_CIDR),
            ..Options::new(node.netns().name(), mode, kubeconfig, node.name())
        })?;
        Ok(Self::KubeProxy(Box::new(proxy)))
    }

    /// Waits until the proxy has programmed all existing Services.
    pub(super) fn wait_ready(&mut self, within: Duration) -> Result<()> {
        match self {
            Self::Ours(agent) => try_wait_until(within, "the agent is ready", || {
                agent.ensure_running()?;
                Ok(agent.wait_ready().ok())
            }),
            Self::KubeProxy(proxy) => proxy.wait_ready(within),
        }
    }
}
