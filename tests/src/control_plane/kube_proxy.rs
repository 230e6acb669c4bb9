//! The real kube-proxy in a network namespace: the reference for behaviour, and the proxy to compare with in
//! benchmarks.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::binaries::binary;
use super::directory;
use super::site::home;
use crate::http;
use crate::process::{Home, Program};
use crate::wait::try_wait_until;

pub mod by_hand;
mod rules;

/// Its health server, in its namespace.
const HEALTH: &str = "127.0.0.1:10256";
/// Its metrics server, in its namespace.
const METRICS: &str = "127.0.0.1:10249";
const START: Duration = Duration::from_mins(2);

/// The back end of kube-proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// nftables, through `nft`.
    Nftables,
    /// iptables, through `iptables-restore`.
    Iptables,
}

/// The parameters of a kube-proxy.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// The name of the node's network namespace.
    pub netns: &'a str,
    /// The back end that it programs.
    pub mode: Mode,
    /// The credentials; the namespace must have a route to the API server.
    pub kubeconfig: &'a Path,
    /// The name of the Node object, which must exist and have addresses.
    pub hostname: &'a str,
    /// The pod ranges (`clusterCIDR`): packets to a `ClusterIP` from other sources are masqueraded.
    pub cluster_cidr: Option<&'a str>,
    /// The shortest time between two syncs (`minSyncPeriod`). kube-proxy replaces zero by one second.
    pub min_sync_period: Duration,
    /// More fields of the configuration, which override fields of the same name.
    pub more: Option<&'a Value>,
}

impl<'a> Options<'a> {
    /// Returns parameters with kube-proxy's own defaults.
    pub const fn new(netns: &'a str, mode: Mode, kubeconfig: &'a Path, hostname: &'a str) -> Self {
        let min_sync_period = Duration::from_secs(1);
        Self { netns, mode, kubeconfig, hostname, cluster_cidr: None, min_sync_period, more: None }
    }

    /// Returns the configuration file, which our agent can read as well.
    pub fn configuration(&self) -> String {
        let mode = match self.mode {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
        };
        let sync = json!({
            "minSyncPeriod": format!("{}ms", self.min_sync_period.as_millis()),
            "syncPeriod": "30s",
        });
        let mut document = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "mode": mode,
            "clientConnection": {"kubeconfig": self.kubeconfig},
            "hostnameOverride": self.hostname,
            "clusterCIDR": self.cluster_cidr.unwrap_or_default(),
            "healthzBindAddress": HEALTH,
            "metricsBindAddress": METRICS,
            // The size of the conntrack table belongs to the machine, not to the namespace, so it must not be changed.
            "conntrack": {"maxPerCore": 0, "min": 0},
            "iptables": sync, "nftables": sync,
        });
        if let Some(more) = self.more {
            merge(&mut document, more);
        }
        document.to_string()
    }
}

/// Merges one JSON object into another, field by field.
pub(crate) fn merge(into: &mut Value, more: &Value) {
    let (Some(fields), Some(more)) = (into.as_object_mut(), more.as_object()) else {
        *into = more.clone();
        return;
    };
    for (name, value) in more {
        merge(fields.entry(name).or_insert(Value::Null), value);
    }
}

/// A running kube-proxy; dropping it ends the process and leaves its rules in the namespace.
#[derive(Debug)]
pub struct KubeProxy {
    process: Program,
    home: Home,
    _directory: TempDir,
}

impl KubeProxy {
    /// Starts kube-proxy, and returns when it has programmed all existing Services.
    pub fn start(options: &Options<'_>) -> Result<Self> {
        let mut proxy = Self::spawn(options)?;
        proxy.wait_ready(START)?;
        Ok(proxy)
    }

    /// Starts kube-proxy and returns at once.
    pub fn spawn(options: &Options<'_>) -> Result<Self> {
        let directory = directory::create("kube-proxy")?;
        let config = directory.path().join("kube-proxy.json");
        fs::write(&config, options.configuration())
            .with_context(|| format!("configuration {}", config.display()))?;
        let home = home(Some(options.netns))?;
        let mut command = home.command(&binary("kube-proxy")?)?;
        command.arg(format!("--config={}", config.display()));
        let log = directory.path().join("kube-proxy.log");
        let process = Program::spawn("kube-proxy", command, &log)?;
        Ok(Self { process, home, _directory: directory })
    }

    /// Waits until it has programmed all existing Services.
    pub fn wait_ready(&mut self, within: Duration) -> Result<()> {
        let (process, home) = (&mut self.process, &self.home);
        let health: SocketAddr = HEALTH.parse()?;
        let ready = try_wait_until(within, "kube-proxy /healthz", || {
            process.ensure_running()?;
            let answer = http::get(home, health, "/healthz");
            Ok(answer.is_ok_and(|(status, _)| status == 200).then_some(()))
        });
        ready.with_context(|| format!("the end of kube-proxy's log:\n{}", self.process.log_end(20)))
    }

    /// Returns the page `/metrics` as text.
    pub fn metrics(&self) -> Result<String> {
        let (status, text) = http::get(&self.home, METRICS.parse()?, "/metrics")?;
        ensure!(status == 200, "/metrics of kube-proxy answered with {status}");
        Ok(text)
    }

    /// Returns status code and body of a path of its metrics server, with this `Accept` header.
    pub fn page(&self, path: &str, accept: &str) -> Result<(u16, String)> {
        http::get_as(&self.home, METRICS.parse()?, path, accept)
    }

    /// Returns the process id, for measurements.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}
