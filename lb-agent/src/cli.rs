//! The command line as plain structs. Other modules give the options their meaning.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, CommandFactory as _, Parser, Subcommand};

use crate::config::DEFAULT_BPF_DIR;
use crate::config::flags::Run;

mod explain;
mod log;
mod run;
mod show;
#[cfg(feature = "standalone")]
mod standalone;

pub use explain::{ClientAddress, Explain, Transport};
pub use log::{LastLines, lost, start_log};
pub use run::{Instead, Start};
pub use show::{
    AffinityVerb, Ct, CtList, Diff, FlowFilter, Flush, Format, Lb, LbList, ListArguments, MapList,
    MapVerb, Output, Repeat, Scope, ServiceShow, ServiceVerb,
};
#[cfg(feature = "standalone")]
pub use standalone::{KubeconfigRole, KubeconfigVerb, Serve};

/// Load balancer for Kubernetes Services: replaces kube-proxy with eBPF, beside any CNI.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, args_override_self = true)]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the command line of this process. As in Kubernetes' components, an underscore in the name of a flag is a
    /// hyphen, and the last of several values counts.
    pub fn of_process() -> Self {
        Self::parse_from(std::env::args_os().map(with_hyphens))
    }
}

/// Replaces underscores in the name of a flag.
fn with_hyphens(argument: OsString) -> OsString {
    let Some(flag) = argument.to_str().and_then(|text| text.strip_prefix("--")) else {
        return argument;
    };
    let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
    format!("--{}{value}", name.replace('_', "-")).into()
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node agent. SIGTERM stops it; the data path stays active, and the next start reuses it.
    Run(Box<Start>),
    /// Remove all that the agent changed on the node (programs, links, maps, pins, routes, its nftables table, files,
    /// settings of `lo`, timeouts of netfilter), and list what was removed.
    Cleanup(Cleanup),
    /// Show what is left of kube-proxy on this node; exit code 0 when nothing is left.
    Takeover(TakeoverVerb),
    /// Show agent and data path health. Reads the pins, so it works without a running agent. Exit code 0: the data path
    /// has no known fault.
    Status(Status),
    /// Mount the bpffs for the pins, and raise timeouts of netfilter that are shorter than those of flows. Needs a
    /// privileged container; meant for an init container.
    Init(Box<Run>),
    /// Show or convert the configuration.
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Show Services by name, as written to the maps.
    #[command(subcommand)]
    Service(ServiceVerb),
    /// Show frontends and backends, as the kernel maps hold them.
    #[command(subcommand)]
    Lb(Lb),
    /// Trace a client's first packet to an address, and explain the result. Reads the maps and changes none; exit
    /// code 1 when the packet reaches no backend.
    Explain(Explain),
    /// Show or delete flows (tracked connections).
    #[command(subcommand)]
    Ct(Ct),
    /// Show `ClientIP` affinity.
    #[command(subcommand)]
    Affinity(AffinityVerb),
    /// Show the eBPF maps.
    #[command(subcommand)]
    Map(MapVerb),
    /// Run the control plane: an API server for Services with its store in one file. Needs no root.
    #[cfg(feature = "standalone")]
    Serve(Serve),
    /// Print a kubeconfig for the control plane in a directory.
    #[cfg(feature = "standalone")]
    Kubeconfig(KubeconfigVerb),
    /// Print completions for a shell.
    #[command(alias = "completion")]
    Completions {
        /// Shell that reads the completions.
        shell: clap_complete::Shell,
    },
}

/// `lb-agent config ...`
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Show what the given flags and --config mean: each value and its origin. Takes the flags of `run`. The
    /// configuration of a running agent is at /configz, port 10249.
    View(Box<Run>),
    /// Convert kube-proxy's `ConfigMap`, or the file in it, to the two documents that --config reads.
    Migrate {
        /// YAML file, for example from kubectl -o yaml; - reads standard input.
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
    },
}

/// The pins by which a command finds the maps, also without a running agent.
#[derive(Clone, Debug, Args)]
pub struct Pins {
    /// Directory with the pins: the --bpf-dir of the agent's `run`.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_BPF_DIR)]
    pub bpf_dir: PathBuf,
}

/// `lb-agent cleanup`
#[derive(Debug, Args)]
pub struct Cleanup {
    #[command(flatten)]
    pub pins: Pins,
    /// Ignored; accepted so that the flags of `run` can be reused.
    #[arg(long, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,
    /// Serve known flows until the last one has ended, and leave new ones to kube-proxy. Then clean up. Without
    /// --after-rules, kube-proxy's rules must be in place already.
    #[arg(long)]
    pub drain: bool,
    /// Serve everything until kube-proxy's rules are in place, then drain. Start this command before kube-proxy.
    #[arg(long, requires = "drain")]
    pub after_rules: bool,
    /// Maximum time to drain, in seconds; then the remaining flows are removed too. With --after-rules also the maximum
    /// time until the rules are in place; if they are not, nothing is removed.
    #[arg(long, value_name = "SECONDS", requires = "drain")]
    pub timeout: Option<u64>,
}

/// `lb-agent takeover`
#[derive(Debug, Args)]
pub struct TakeoverVerb {
    #[command(flatten)]
    pub pins: Pins,
    /// Remove kube-proxy's rules: nftables tables, its iptables chains (with iptables-nft-save, iptables-legacy-save,
    /// their -restore, and the ip6tables forms), and kube-ipvs0 once its last connection has ended. Established
    /// connections continue.
    #[arg(long)]
    pub remove_rules: bool,
    /// Wait until nothing of kube-proxy is left.
    #[arg(long)]
    pub wait: bool,
    /// Maximum time to wait, in seconds.
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    pub timeout: Option<u64>,
}

/// `lb-agent status`
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    pub pins: Pins,
    /// Also list all programs attached to the served interfaces and sockets, and missing kernel features.
    #[arg(long)]
    pub verbose: bool,
    /// Whether to repeat the output.
    #[command(flatten)]
    pub repeat: Repeat,
}

/// Returns every flag of `run` with its value for `/flagz`, an empty text where it is not given; empty if the arguments
/// belong to another verb.
pub fn flags(arguments: impl IntoIterator<Item = OsString>) -> BTreeMap<String, String> {
    let command = Cli::command();
    // The arguments are parsed once more, since the parsed form does not keep their texts.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> Run {
        let all = ["lb-agent", "run"].iter().chain(arguments);
        let command = Cli::try_parse_from(all).unwrap().command;
        let Command::Run(start) = command else { panic!("{command:?}") };
        start.run
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
    fn names_of_flags_may_have_underscores_and_last_value_counts() {
        for (given, read) in [
            ("--cluster_cidr=a_b", "--cluster-cidr=a_b"),
            ("--bind_address", "--bind-address"),
            ("--", "--"),
            ("-v", "-v"),
            ("a_b", "a_b"),
        ] {
            assert_eq!(with_hyphens(given.into()), read, "{given}");
        }
        assert_eq!(run(&["--bpf-dir=/a", "-v2", "--bpf-dir=/b", "-v=4"]).log.v, Some(4));
    }

    #[test]
    fn flags_are_listed_with_their_values() {
        let given = ["--map-size=flows=9", "--map-size=services=8", "-v4", "--bpf-dir=/d"];
        let flags = flags(["lb-agent", "run"].into_iter().chain(given).map(OsString::from));
        let value = |name: &str| flags.get(name).map(String::as_str);
        assert_eq!(value("map-size"), Some("flows=9,services=8"));
        assert_eq!((value("v"), value("bpf-dir")), (Some("4"), Some("/d")));
        assert_eq!((value("kubeconfig"), value("profiling")), (Some(""), Some("")));
        assert_eq!(value("cleanup"), Some("false"));
        assert_eq!(super::flags(["lb-agent", "status"].map(OsString::from)), BTreeMap::new());
    }

    #[test]
    fn map_sizes_are_checked() {
        assert_eq!(run(&["--map-size", "flows=9"]).map_size, [("FLOWS".to_owned(), 9)]);
        for (wrong, named) in [
            ("FLOWS", "write MAP=ENTRIES"),
            ("FLOWS=x", "\"x\""),
            ("FLOWS=0", "at least one entry"),
            ("COUNTERS=9", "COUNTERS does not exist or has a fixed size; choose one of SERVICES"),
            ("FLOWS=134217729", "FLOWS cannot have 134217729 entries; at most 134217728 are"),
        ] {
            let refusal =
                Cli::try_parse_from(["lb-agent", "run", "--map-size", wrong]).unwrap_err();
            assert!(refusal.to_string().contains(named), "{wrong}: {refusal}");
        }
    }

    #[test]
    fn flag_without_effect_on_a_command_is_refused_by_name() {
        let verbs: [&[&str]; 3] = [&["config", "view"], &["lb", "diff"], &["init"]];
        for verb in verbs {
            for flag in ["--cleanup", "--init-only", "--write-config-to=f"] {
                let all = [&["lb-agent"], verb, &[flag]].concat();
                let refusal = Cli::try_parse_from(all).unwrap_err().to_string();
                let name = flag.split('=').next().unwrap();
                assert!(refusal.contains(name), "{verb:?} {flag}: {refusal}");
            }
        }
        let watched = Cli::try_parse_from(["lb-agent", "lb", "diff", "--watch"]);
        assert!(watched.unwrap_err().to_string().contains("--watch"), "a diff is made once");
    }

    #[test]
    fn only_flags_of_kube_proxy_stand_under_its_heading() {
        let mut command = Cli::command();
        command.build();
        let command = command.find_subcommand("run").unwrap();
        let under = |heading: &str| -> Vec<&str> {
            let all = command.get_arguments().filter(|it| !it.is_hide_set());
            let here = all.filter(|it| it.get_help_heading().unwrap_or_default() == heading);
            here.filter_map(Arg::get_long).collect()
        };
        assert_eq!(under("Logging"), ["log-format", "v"]);
        assert_eq!(under("Instead of running"), ["cleanup", "init-only", "write-config-to"]);
        assert!(under("").contains(&"bpf-dir") && under("").contains(&"help"));
        let heading = "kube-proxy's flags; with --config they are ignored";
        assert_eq!(under(heading).len(), 18, "{:?}", under(heading));
    }
}
