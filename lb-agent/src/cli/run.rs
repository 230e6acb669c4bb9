//! `run`, and what other commands share with it: everything that the agent can be told.

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
    /// What the agent is told.
    #[command(flatten)]
    pub run: Run,
    /// What to do instead.
    #[command(flatten)]
    pub instead: Instead,
}

/// What kube-proxy's command does where it does not run.
#[derive(Debug, Args)]
#[command(next_help_heading = "In place of running")]
pub struct Instead {
    /// Remove everything, as `lb-agent cleanup` does, and exit.
    #[arg(long, conflicts_with = "init_only", value_name = "BOOL", value_parser = values::boolean, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true)]
    pub cleanup: bool,
    /// Do what needs a privileged container, as `lb-agent init` does, and exit.
    #[arg(long, value_name = "BOOL", value_parser = values::boolean, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true)]
    pub init_only: bool,
    /// Write the configuration as two documents to a file, and exit.
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub write_config_to: Option<PathBuf>,
}

impl Instead {
    /// Where the configuration is to be written; as with kube-proxy, an empty name is none.
    pub fn write_config_to(&self) -> Option<&Path> {
        named(self.write_config_to.as_ref())
    }
}

/// What the agent is told, for each command that asks for it.
#[derive(Debug, Args)]
pub struct Run {
    /// Kubeconfig of the API server. Without it and without --manifests: the pod's service account.
    #[arg(long, value_name = "FILE", conflicts_with = "manifests", value_parser = path())]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server, in place of the kubeconfig's.
    #[arg(long, value_name = "URL", conflicts_with = "manifests")]
    pub master: Option<String>,
    /// Folder of Service, EndpointSlice and Node manifests, watched in place of an API server.
    #[arg(long, value_name = "DIR")]
    pub manifests: Option<PathBuf>,
    /// Name of our Node object [default: the host name in lower case].
    #[arg(long, value_name = "NODE")]
    pub hostname_override: Option<String>,
    /// Folder for the agent's pins; becomes a bpffs if it is none [default: /sys/fs/bpf/lb].
    #[arg(long, value_name = "DIR")]
    pub bpf_dir: Option<PathBuf>,
    /// The cgroup v2 whose sockets are served [default: the host's below /host, else the first in /proc/mounts].
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    /// Devices to the outside, with * and ?; repeatable [default: found by address, default route, tunnel].
    #[arg(long, value_name = "PATTERN")]
    pub external_device: Vec<Pattern>,
    /// Devices of pods, with * and ?; repeatable [default: veths whose other end is elsewhere].
    #[arg(long, value_name = "PATTERN")]
    pub pod_device: Vec<Pattern>,
    /// Entries of a map, for example FLOWS=1048576 (FLOWS4 and FLOWS6 each); repeatable.
    #[arg(long, value_name = "MAP=ENTRIES", value_parser = size)]
    pub map_size: Vec<(String, u32)>,
    /// Packets that the programs log, one line each.
    #[arg(long, value_name = "WHICH", value_enum, default_value = "off")]
    pub packet_log: PacketLog,
    /// KubeProxyConfiguration, and AgentConfiguration as a second document.
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
    /// The file of `--config`; as with kube-proxy, an empty name is none.
    pub fn config_file(&self) -> Option<&Path> {
        named(self.config.as_ref())
    }

    /// The file of `--kubeconfig`, the same way.
    pub fn kubeconfig_file(&self) -> Option<&Path> {
        named(self.kubeconfig.as_ref())
    }
}

/// A path that may be empty, which clap's own may not.
fn path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn named(path: Option<&PathBuf>) -> Option<&Path> {
    path.filter(|path| !path.as_os_str().is_empty()).map(PathBuf::as_path)
}

fn size(text: &str) -> Result<(String, u32), String> {
    let (name, entries) = text
        .split_once('=')
        .ok_or_else(|| format!("write it as MAP=ENTRIES, of the maps {}", Shape::sizable()))?;
    let entries = entries.parse().map_err(|error| format!("{entries:?}: {error}"))?;
    if entries == 0 {
        Err("a map needs an entry".into())
    } else {
        Ok((name.to_uppercase(), entries))
    }
}
