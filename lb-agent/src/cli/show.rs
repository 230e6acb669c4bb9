//! Arguments of the commands that print lists: selection and format.

use std::io::{self, IsTerminal as _};
use std::net::IpAddr;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::Pins;
use crate::config::flags::Run;

/// `lb-agent service ...`
#[derive(Debug, Subcommand)]
pub enum ServiceVerb {
    /// List service ports by name.
    List(ListArguments),
    /// Show one Service, or one of its ports, in detail.
    Show(ServiceShow),
}

/// `lb-agent lb ...`
#[derive(Debug, Subcommand)]
pub enum Lb {
    /// List frontends and their backends.
    List(LbList),
    /// Compare the source (API server or manifests) with the maps. Exit code 0: equal; 1: different; 2: usage error;
    /// 3: unknown, because there is no data path, no source, or an unreadable manifest (the others are compared).
    Diff(Box<Diff>),
}

/// `lb-agent ct ...`
#[derive(Debug, Subcommand)]
pub enum Ct {
    /// List flows.
    List(CtList),
    /// Delete flows. Open connections break.
    Flush(Flush),
}

/// `lb-agent affinity ...`
#[derive(Debug, Subcommand)]
pub enum AffinityVerb {
    /// List clients and their backends.
    List(ListArguments),
}

/// `lb-agent map ...`
#[derive(Debug, Subcommand)]
pub enum MapVerb {
    /// List the maps with their fill level and memory.
    List(MapList),
}

/// Arguments of a list of objects that belong to services.
#[derive(Clone, Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    pub pins: Pins,
    #[command(flatten)]
    pub scope: Scope,
    #[command(flatten)]
    pub format: Format,
    /// Whether to repeat the output.
    #[command(flatten)]
    pub repeat: Repeat,
}

/// `lb-agent lb list`
#[derive(Clone, Debug, Args)]
pub struct LbList {
    /// Print in the format of `ipvsadm -Ln`.
    #[arg(long, conflicts_with_all = ["output", "no_headers"])]
    pub ipvs: bool,
    /// Selection of services, and format.
    #[command(flatten)]
    pub list: ListArguments,
}

/// `lb-agent service show`
#[derive(Clone, Debug, Args)]
pub struct ServiceShow {
    /// NAMESPACE/NAME or NAME, with :PORT for one port; or the ID that `service list -o wide` shows.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Namespace of NAME [default: any].
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub pins: Pins,
    /// Output format; `table` prints a page of text.
    #[command(flatten)]
    pub format: Format,
    /// Whether to repeat the output.
    #[command(flatten)]
    pub repeat: Repeat,
}

/// `lb-agent lb diff`
#[derive(Debug, Args)]
pub struct Diff {
    #[command(flatten)]
    pub format: Format,
    /// The source, with the flags of `run`.
    #[command(flatten)]
    pub run: Run,
}

/// `lb-agent ct list`
#[derive(Clone, Debug, Args)]
pub struct CtList {
    #[command(flatten)]
    pub filter: FlowFilter,
    /// Selection of services, and format.
    #[command(flatten)]
    pub list: ListArguments,
}

/// A selection of flows: those that match every given option.
#[derive(Clone, Debug, Default, Args)]
pub struct FlowFilter {
    /// Only flows of this service: NAMESPACE/NAME or NAME, with :PORT for one port; or the ID that
    /// `service list -o wide` shows.
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Only flows of the client with this address.
    #[arg(long, value_name = "ADDRESS")]
    pub client: Option<IpAddr>,
    /// Only flows to the backend with this address.
    #[arg(long, value_name = "ADDRESS")]
    pub backend: Option<IpAddr>,
}

/// `lb-agent ct flush`
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("which").args(["service", "client", "backend", "all"]).required(true).multiple(true))]
pub struct Flush {
    #[command(flatten)]
    pub filter: FlowFilter,
    /// All flows of this node.
    #[arg(long, conflicts_with_all = ["service", "client", "backend"])]
    pub all: bool,
    #[command(flatten)]
    pub pins: Pins,
}

/// `lb-agent map list`
#[derive(Clone, Debug, Args)]
pub struct MapList {
    #[command(flatten)]
    pub pins: Pins,
    #[command(flatten)]
    pub format: Format,
    /// Whether to repeat the output.
    #[command(flatten)]
    pub repeat: Repeat,
}

/// A selection of services.
#[derive(Clone, Debug, Default, Args)]
pub struct Scope {
    /// Only services of this namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Services of all namespaces (the default).
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Only IPv4.
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub ipv4: bool,
    /// Only IPv6.
    #[arg(short = '6', long)]
    pub ipv6: bool,
}

impl Scope {
    /// Reports whether a service, as `namespace/name:port`, is selected. A service whose name is not known is selected
    /// only without a namespace.
    pub fn has(&self, service: Option<&str>) -> bool {
        let Some(wanted) = &self.namespace else { return true };
        let namespace =
            service.and_then(|name| name.split_once('/')).map(|(namespace, _)| namespace);
        namespace == Some(wanted)
    }

    /// Reports whether IPv4, else IPv6, is selected.
    pub const fn has_family(&self, is_v4: bool) -> bool {
        if is_v4 { !self.ipv6 } else { !self.ipv4 }
    }
}

/// Format of a list.
#[derive(Clone, Copy, Debug, Args)]
pub struct Format {
    /// Output format.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// Do not print the header line.
    #[arg(long)]
    pub no_headers: bool,
    /// Whether to use colours; set from the terminal, not by a flag.
    #[arg(skip = has_colours())]
    pub colour: bool,
}

/// Whether output is printed once or until interrupted.
#[derive(Clone, Copy, Debug, Args)]
pub struct Repeat {
    /// Print again after each change, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
}

/// Output formats of lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Columns.
    Table,
    /// More columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Names, one per line.
    Name,
}

/// Reports whether output is coloured: only on a terminal, and not with `NO_COLOR` (no-color.org).
fn has_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stdout().is_terminal()
}
