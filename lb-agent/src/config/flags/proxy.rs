//! kube-proxy's flags by their names, for install scripts that pass them.

use std::time::Duration;

use clap::Args;

use super::ignored::IgnoredFlags;
use crate::config::values;

/// kube-proxy's flags that mean something here. With `--config` they are ignored.
#[expect(clippy::doc_markdown, reason = "shown as help, where backticks are noise")]
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "kube-proxy's flags; with --config they are ignored")]
pub struct ProxyFlags {
    /// Address of this node; replaces the Node object's address of the same family, unless it is 0.0.0.0 or ::.
    #[arg(long, value_name = "IP")]
    pub bind_address: Option<String>,
    /// Exit if a listener cannot bind, instead of retrying.
    #[arg(long, value_name = "BOOL", value_parser = values::boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub bind_address_hard_fail: Option<bool>,
    /// Address for /healthz, /livez and /readyz; empty to disable [default: 0.0.0.0:10256].
    #[arg(long, value_name = "ADDRESS")]
    pub healthz_bind_address: Option<String>,
    /// Address for /metrics, /healthz, /proxyMode, /configz, /statusz and /flagz; empty to disable [default:
    /// 127.0.0.1:10249].
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_bind_address: Option<String>,
    /// Port of the health server if its address has none; 0 to disable.
    #[arg(long, value_name = "PORT", hide = true)]
    pub healthz_port: Option<u16>,
    /// Port of the metrics server if its address has none; 0 to disable.
    #[arg(long, value_name = "PORT", hide = true)]
    pub metrics_port: Option<u16>,
    /// Pod prefixes of the cluster, at most one per family.
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub cluster_cidr: Option<String>,
    /// Method of detecting local pods: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.
    #[arg(long, value_name = "MODE")]
    pub detect_local_mode: Option<String>,
    /// Bridge for mode BridgeInterface.
    #[arg(long, value_name = "INTERFACE")]
    pub pod_bridge_interface: Option<String>,
    /// Prefix of interface names for mode InterfaceNamePrefix.
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,
    /// Addresses that serve NodePorts: prefixes, primary, all or localhost [default: primary].
    #[arg(long, value_name = "WHERE", value_delimiter = ',')]
    pub nodeport_addresses: Option<Vec<String>>,
    /// Masquerade all traffic to ClusterIPs.
    #[arg(long, value_name = "BOOL", value_parser = values::boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub masquerade_all: Option<bool>,
    /// Serve NodePorts on loopback addresses [default: false].
    #[arg(long, value_name = "BOOL", value_parser = values::boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub iptables_localhost_nodeports: Option<bool>,
    /// /healthz fails once a change has waited for twice this time [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub iptables_sync_period: Option<Duration>,
    /// `oom_score_adj` of the agent.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(i64).range(-1_000..=1_000))]
    pub oom_score_adj: Option<i64>,
    /// Idle timeout of established TCP connections.
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub conntrack_tcp_timeout_established: Option<Duration>,
    /// Idle timeout of half-closed TCP connections.
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub conntrack_tcp_timeout_close_wait: Option<Duration>,
    /// Idle timeout of unanswered UDP flows.
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub conntrack_udp_timeout: Option<Duration>,
    /// Idle timeout of answered UDP flows.
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    pub conntrack_udp_timeout_stream: Option<Duration>,
    /// Feature gates; only AllowServiceExternalIPs has an effect: with false, external IPs of Services are not served.
    #[arg(long, value_name = "GATE=BOOL", value_delimiter = ',', value_parser = values::gate)]
    pub feature_gates: Option<Vec<(String, bool)>>,
    /// Accepted, without effect.
    #[command(flatten)]
    pub ignored_flags: IgnoredFlags,
}
