//! The flags of the agent by their names, for each command that reads the configuration.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};

use super::proxy::ProxyFlags;
use crate::config::{LogFormat, Pattern};
use crate::datapath::PacketLog;
use crate::maps::MapShape;

/// The flags of the agent, for each command that reads them.
#[derive(Debug, Args)]
pub struct Run {
    /// Kubeconfig for the API server [default without --manifests: the pod's service account].
    #[arg(long, value_name = "FILE", conflicts_with = "manifests", value_parser = path())]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; overrides the kubeconfig.
    #[arg(long, value_name = "URL", conflicts_with = "manifests")]
    pub master: Option<String>,
    /// Directory of Service, EndpointSlice, Node and ServiceCIDR manifests, watched instead of an API server.
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
    /// All external interfaces (uplinks, tunnels), with * and ?; repeatable [default: detected by address and route].
    #[arg(long, value_name = "PATTERN")]
    pub external_device: Vec<Pattern>,
    /// All pod interfaces, with * and ?; repeatable [default: veths and L2 netkits with a peer in another network
    /// namespace].
    #[arg(long, value_name = "PATTERN")]
    pub pod_device: Vec<Pattern>,
    /// Maximum entries of a map, for example FLOWS=1048576 (FLOWS4 and FLOWS6 each); repeatable.
    #[arg(long, value_name = "MAP=ENTRIES", value_parser = size)]
    pub map_size: Vec<(String, u32)>,
    /// Log packets, one line for each packet.
    #[arg(long, value_name = "WHICH", value_enum, default_value = "off")]
    pub packet_log: PacketLog,
    /// Configuration file: KubeProxyConfiguration, optionally followed by AgentConfiguration.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub config: Option<PathBuf>,
    /// kube-proxy's flags.
    #[command(flatten)]
    pub proxy: ProxyFlags,
    #[command(flatten)]
    pub log: Log,
}

impl Run {
    /// Returns the file of `--config`; `None` for an empty name, as with kube-proxy.
    pub fn config_file(&self) -> Option<&Path> {
        named(self.config.as_ref())
    }

    /// Returns the file of `--kubeconfig`; `None` for an empty name.
    pub fn kubeconfig_file(&self) -> Option<&Path> {
        named(self.kubeconfig.as_ref())
    }
}

/// Format and verbosity of the log.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Logging")]
pub struct Log {
    /// Log format [default: text]. Same as kube-proxy's --logging-format.
    #[arg(long, alias = "logging-format", value_name = "FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// Log verbosity: 0 to 2 info, 3 and 4 debug, 5 and more trace [default: 2].
    #[arg(short, long, value_name = "N")]
    pub v: Option<u8>,
}

/// Returns a parser of paths that accepts an empty one, which clap's own parser rejects.
pub(crate) fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

pub(crate) fn named(path: Option<&PathBuf>) -> Option<&Path> {
    path.filter(|path| !path.as_os_str().is_empty()).map(PathBuf::as_path)
}

fn size(text: &str) -> Result<(String, u32), String> {
    let (name, entries) = text
        .split_once('=')
        .ok_or_else(|| format!("write MAP=ENTRIES; the maps are {}", MapShape::sizable()))?;
    let entries = entries.parse().map_err(|error| format!("{entries:?}: {error}"))?;
    if entries == 0 {
        return Err("a map needs at least one entry".into());
    }
    let name = name.to_uppercase();
    MapShape::ensure_sizable(&name, entries)?;
    Ok((name, entries))
}
