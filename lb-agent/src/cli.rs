//! The command line: what can be typed, as plain structs. What it means is elsewhere.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

use crate::config::flags::ProxyFlags;
use crate::datapath::PacketLog;
use crate::maps::Shape;
use crate::node::Pattern;

mod show;

pub use show::{
    AffinityVerb, Ct, Diff, Flush, Format, Lb, LbList, MapList, MapVerb, Output, Scope,
    ServiceShow, ServiceVerb, Services,
};

/// Serves Kubernetes Services through eBPF, beside any CNI, in place of kube-proxy.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node agent. On SIGTERM it ends; packets go on being served, and the next run takes over.
    Run(Box<Run>),
    /// Remove every program, link and pin, and say what was removed.
    Cleanup(Cleanup),
    /// One screen: is it on, and how. Reads the pins; the agent need not run.
    Status(Status),
    /// Do what needs a privileged container: mount the bpffs for the pins. For an init container.
    Init(Box<Run>),
    /// The configuration in effect.
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Services by name, as far as they are programmed.
    #[command(subcommand)]
    Service(ServiceVerb),
    /// What the kernel maps hold.
    #[command(subcommand)]
    Lb(Lb),
    /// Flows: what the data path remembers of translated packets.
    #[command(subcommand)]
    Ct(Ct),
    /// `ClientIP` affinity.
    #[command(subcommand)]
    Affinity(AffinityVerb),
    /// The maps themselves.
    #[command(subcommand)]
    Map(MapVerb),
    /// Print completions for a shell.
    #[command(alias = "completion")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// `lb-agent config ...`
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Each value and where it comes from, given the flags of `run`.
    View(Box<Run>),
    /// Turn kube-proxy's `ConfigMap`, or the file in it, into the two documents that --config reads.
    Migrate {
        /// YAML as kubectl prints it; - for standard input.
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
    },
}

/// Where the pins are.
#[derive(Clone, Debug, Args)]
pub struct Pins {
    /// Folder for pins; becomes a bpffs if it is none.
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/bpf/lb")]
    pub bpf_dir: PathBuf,
}

/// `lb-agent run`
#[derive(Debug, Args)]
pub struct Run {
    /// Kubeconfig of the API server. Without it and without --manifests: the pod's service account.
    #[arg(long, value_name = "FILE", conflicts_with = "manifests")]
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
    /// Where the pins are.
    #[command(flatten)]
    pub pins: Pins,
    /// The cgroup v2 whose sockets are served [default: the first in /proc/mounts].
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    /// Devices to the outside, with * and ?; repeatable [default: found by address, default route, tunnel].
    #[arg(long, value_name = "PATTERN")]
    pub external_device: Vec<Pattern>,
    /// Devices of pods, with * and ?; repeatable [default: veths whose other end is elsewhere].
    #[arg(long, value_name = "PATTERN")]
    pub pod_device: Vec<Pattern>,
    /// Entries of a map, for example FLOWS=1048576; repeatable.
    #[arg(long, value_name = "MAP=ENTRIES", value_parser = size)]
    pub map_size: Vec<(String, u32)>,
    /// Packets that the programs log, one line each.
    #[arg(long, value_name = "WHICH", value_enum, default_value = "off")]
    pub packet_log: PacketLog,
    /// KubeProxyConfiguration, and AgentConfiguration as a second document.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Remove everything, as `lb-agent cleanup` does, and exit.
    #[arg(long, conflicts_with = "init_only", value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true)]
    pub cleanup: bool,
    /// Do what needs a privileged container, as `lb-agent init` does, and exit.
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false, hide_default_value = true)]
    pub init_only: bool,
    /// Write the configuration as two documents to a file, and exit.
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// kube-proxy's flags.
    #[command(flatten)]
    pub proxy: ProxyFlags,
    /// How to log.
    #[command(flatten)]
    pub log: Log,
}

/// How to log.
#[derive(Clone, Copy, Debug, Args)]
pub struct Log {
    /// How log lines look.
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// How much is logged: 0 to 2 information, 3 and 4 debug, 5 and more everything.
    #[arg(short, long, value_name = "N", default_value_t = 2)]
    pub v: u8,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// `lb-agent cleanup`
#[derive(Debug, Args)]
pub struct Cleanup {
    /// Where the pins are.
    #[command(flatten)]
    pub pins: Pins,
    /// Accepted for symmetry with `run`: the links know their cgroup.
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
}

/// `lb-agent status`
#[derive(Debug, Args)]
pub struct Status {
    /// Where the pins are.
    #[command(flatten)]
    pub pins: Pins,
    /// Also who else is attached to our devices, and what this machine lacks.
    #[arg(long)]
    pub verbose: bool,
    /// Say it again whenever it changes, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
}

/// Every flag of `run` with its value, empty where it has none, for `/flagz`; none when these arguments are not of `run`.
pub fn flags(arguments: impl IntoIterator<Item = OsString>) -> BTreeMap<String, String> {
    let command = Cli::command();
    let matches = command.clone().try_get_matches_from(arguments).ok();
    let Some(("run", matches)) = matches.as_ref().and_then(ArgMatches::subcommand) else {
        return BTreeMap::new();
    };
    let values = |argument: &Arg| {
        let values = matches.try_get_raw(argument.get_id().as_str()).ok().flatten();
        let values = values.into_iter().flatten().map(|value| value.to_string_lossy());
        values.collect::<Vec<_>>().join(",")
    };
    let all = command.find_subcommand("run").into_iter().flat_map(clap::Command::get_arguments);
    all.filter_map(|argument| Some((argument.get_long()?.to_owned(), values(argument)))).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> Run {
        let all = ["lb-agent", "run"].iter().chain(arguments);
        let command = Cli::try_parse_from(all).unwrap().command;
        let Command::Run(run) = command else { panic!("{command:?}") };
        *run
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn patterns_repeat_and_defaults_are_kube_proxys() {
        let run = run(&["--manifests", "d", "--pod-device", "a*", "--pod-device", "b"]);
        assert_eq!(run.pod_device.len(), 2);
        let config = crate::config::Config::of(&run, None).unwrap();
        assert_eq!(config.healthz.value.unwrap().port(), 10_256);
        assert_eq!(config.metrics.value.unwrap().to_string(), "127.0.0.1:10249");
    }

    #[test]
    fn flags_are_listed_with_what_they_are() {
        let given = ["lb-agent", "run", "--map-size=flows=9", "--map-size=services=8", "-v4"];
        let flags = flags(given.map(OsString::from));
        let value = |name: &str| flags.get(name).map(String::as_str);
        assert_eq!(value("map-size"), Some("flows=9,services=8"));
        assert_eq!((value("v"), value("bpf-dir")), (Some("4"), Some("/sys/fs/bpf/lb")));
        assert_eq!((value("kubeconfig"), value("profiling")), (Some(""), Some("")));
        assert_eq!(value("cleanup"), Some("false"));
        assert_eq!(super::flags(["lb-agent", "status"].map(OsString::from)), BTreeMap::new());
    }

    #[test]
    fn map_sizes_are_checked() {
        assert_eq!(run(&["--map-size", "flows=9"]).map_size, [("FLOWS".to_owned(), 9)]);
        for wrong in ["FLOWS", "FLOWS=x", "FLOWS=0"] {
            assert!(Cli::try_parse_from(["lb-agent", "run", "--map-size", wrong]).is_err());
        }
    }
}
