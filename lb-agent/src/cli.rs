//! The command line: what can be typed, as plain structs. What it means is elsewhere.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, CommandFactory as _, Parser, Subcommand};

use crate::config::DEFAULT_BPF_DIR;

mod log;
mod run;
mod show;

pub use log::{Log, LogFormat};
pub use run::{Instead, Run, Start};
pub use show::{
    AffinityVerb, Ct, Diff, Flush, Format, Lb, LbList, MapList, MapVerb, Output, Repeat, Scope,
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
    Run(Box<Start>),
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
    /// Folder with the pins of the agent that is meant: the --bpf-dir that its `run` was given.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_BPF_DIR)]
    pub bpf_dir: PathBuf,
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
    /// Once, or at each change.
    #[command(flatten)]
    pub repeat: Repeat,
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
    fn flags_are_listed_with_what_they_are() {
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
        for wrong in ["FLOWS", "FLOWS=x", "FLOWS=0"] {
            assert!(Cli::try_parse_from(["lb-agent", "run", "--map-size", wrong]).is_err());
        }
    }

    #[test]
    fn what_means_nothing_to_a_command_is_refused_by_name() {
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
        assert_eq!(under("In place of running"), ["cleanup", "init-only", "write-config-to"]);
        assert!(under("").contains(&"bpf-dir") && under("").contains(&"help"));
        let heading = "kube-proxy's flags; with --config they are ignored";
        assert_eq!(under(heading).len(), 17, "{:?}", under(heading));
    }
}
