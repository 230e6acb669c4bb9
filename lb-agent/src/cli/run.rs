//! Arguments of `run`, shared with other commands.

use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args};

use super::Log;
use crate::config::flags::ProxyFlags;
use crate::config::values;
use crate::datapath::PacketLog;
use crate::maps::Shape;
use crate::node::Pattern;

/// `lb-agent run`
#[derive(Debug, Args)]
pub struct Start {
    /// The settings of the agent.
    #[command(flatten)]
    pub run: Run,
    /// The command in place of running.
    #[command(flatten)]
    pub instead: Instead,
}

/// Actions that kube-proxy's command line offers in place of running.
#[derive(Debug, Args)]
#[command(next_help_heading = "Instead of running")]
pub struct Instead {
    /// Remove everything, as `lb-agent cleanup` does, and exit.
    #[arg(long, conflicts_with = "init_only", value_name = "BOOL", value_parser = values::boolean, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true)]
    pub cleanup: bool,
    /// Mount the bpffs, as `lb-agent init` does, and exit.
    #[arg(long, value_name = "BOOL", value_parser = values::boolean, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true)]
    pub init_only: bool,
    /// Write the configuration in effect to a file, as two documents, and exit.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub write_config_to: Option<PathBuf>,
}

impl Instead {
    /// Returns the file for the configuration. As with kube-proxy, an empty name counts as absent.
    pub fn write_config_to(&self) -> Option<&Path> {
        named(self.write_config_to.as_ref())
    }
}

/// The flags of the agent, shared by every command that reads them.
#[derive(Debug, Args)]
pub struct Run {
    /// Kubeconfig for the API server [default without --manifests: the pod's service account].
    #[arg(long, value_name = "FILE", conflicts_with = "manifests", value_parser = path())]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; overrides the kubeconfig.
    #[arg(long, value_name = "URL", conflicts_with = "manifests")]
    pub master: Option<String>,
    /// Directory of Service, EndpointSlice and Node manifests, watched instead of an API server.
    #[arg(long, value_name = "DIR")]
    pub manifests: Option<PathBuf>,
    /// Name of this node's Node object [default: the host name in lower case].
    #[arg(long, value_name = "NODE")]
    pub hostname_override: Option<String>,
    /// Directory for the pins; a bpffs is mounted there if it is not on one [default: /sys/fs/bpf/lb].
    #[arg(long, value_name = "DIR")]
    pub bpf_dir: Option<PathBuf>,
    /// Cgroup v2 whose sockets are served [default: the host's below /host, else the first in /proc/mounts].
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    /// External interfaces (uplinks, tunnels), with * and ?; repeatable [default: detected by address and route].
    #[arg(long, value_name = "PATTERN")]
    pub external_device: Vec<Pattern>,
    /// Pod interfaces, with * and ?; repeatable [default: veths whose peer is in another network namespace].
    #[arg(long, value_name = "PATTERN")]
    pub pod_device: Vec<Pattern>,
    /// Maximum entries of a map, for example FLOWS=1048576 (FLOWS4 and FLOWS6 each); repeatable.
    #[arg(long, value_name = "MAP=ENTRIES", value_parser = size)]
    pub map_size: Vec<(String, u32)>,
    /// Log packets, one line each.
    #[arg(long, value_name = "WHICH", value_enum, default_value = "off")]
    pub packet_log: PacketLog,
    /// Configuration file: KubeProxyConfiguration, optionally followed by AgentConfiguration.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub config: Option<PathBuf>,
    /// kube-proxy's flags.
    #[command(flatten)]
    pub proxy: ProxyFlags,
    /// How to log.
    #[command(flatten)]
    pub log: Log,
}

impl Run {
    /// Returns the file of `--config`. As with kube-proxy, an empty name counts as absent.
    pub fn config_file(&self) -> Option<&Path> {
        named(self.config.as_ref())
    }

    /// Returns the file of `--kubeconfig`; an empty name counts as absent.
    pub fn kubeconfig_file(&self) -> Option<&Path> {
        named(self.kubeconfig.as_ref())
    }
}

/// Parses a path that may be empty; clap's own parser refuses empty ones.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn named(path: Option<&PathBuf>) -> Option<&Path> {
    path.filter(|path| !path.as_os_str().is_empty()).map(PathBuf::as_path)
}

fn size(text: &str) -> Result<(String, u32), String> {
    let (name, entries) = text
        .split_once('=')
        .ok_or_else(|| format!("write MAP=ENTRIES; the maps are {}", Shape::sizable()))?;
    let entries = entries.parse().map_err(|error| format!("{entries:?}: {error}"))?;
    if entries == 0 {
        return Err("a map needs at least one entry".into());
    }
    let name = name.to_uppercase();
    // Refused here, as an error of usage, and not only when maps are made.
    Shape::ensure_sizable(&name)?;
    Ok((name, entries))
}
