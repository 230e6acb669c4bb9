//! What the verbs that show something take: which services, and how to print.

use std::io::{self, IsTerminal as _};

use clap::{Args, Subcommand, ValueEnum};

use super::{Pins, Run};

/// `lb-agent service ...`
#[derive(Debug, Subcommand)]
pub enum ServiceVerb {
    /// Service ports, by name.
    List(Services),
    /// Everything about one Service, or about one of its ports.
    Show(ServiceShow),
}

/// `lb-agent lb ...`
#[derive(Debug, Subcommand)]
pub enum Lb {
    /// Frontends and their backends.
    List(LbList),
    /// What the source asks for against what the maps hold. Exit code 0 when they are the same, 1 when they differ; 2 for
    /// usage; 3 when it cannot be told: no data path, no source, or a manifest that cannot be read (the rest is compared).
    Diff(Box<Diff>),
}

/// `lb-agent ct ...`
#[derive(Debug, Subcommand)]
pub enum Ct {
    /// Flows that are being translated.
    List(Services),
    /// Forget flows. Connections that are open break.
    Flush(Flush),
}

/// `lb-agent affinity ...`
#[derive(Debug, Subcommand)]
pub enum AffinityVerb {
    /// Clients and the backends they stick to.
    List(Services),
}

/// `lb-agent map ...`
#[derive(Debug, Subcommand)]
pub enum MapVerb {
    /// The maps, how full they are, and what memory they take.
    List(MapList),
}

/// A list of something that belongs to services.
#[derive(Clone, Debug, Args)]
pub struct Services {
    /// Where the pins are.
    #[command(flatten)]
    pub pins: Pins,
    /// Whose.
    #[command(flatten)]
    pub scope: Scope,
    /// How to print.
    #[command(flatten)]
    pub format: Format,
    /// Once, or at each change.
    #[command(flatten)]
    pub repeat: Repeat,
}

/// `lb-agent lb list`
#[derive(Clone, Debug, Args)]
pub struct LbList {
    /// As `ipvsadm -Ln` prints it.
    #[arg(long, conflicts_with_all = ["output", "no_headers"])]
    pub ipvs: bool,
    /// Which, and how.
    #[command(flatten)]
    pub services: Services,
}

/// `lb-agent service show`
#[derive(Clone, Debug, Args)]
pub struct ServiceShow {
    /// NAMESPACE/NAME or NAME, with :PORT for one port; or the number of a service port.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Namespace of NAME [default: any].
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Where the pins are.
    #[command(flatten)]
    pub pins: Pins,
    /// How to print; a table is a page of text here.
    #[command(flatten)]
    pub format: Format,
    /// Once, or at each change.
    #[command(flatten)]
    pub repeat: Repeat,
}

/// `lb-agent lb diff`
#[derive(Debug, Args)]
pub struct Diff {
    /// How to print.
    #[command(flatten)]
    pub format: Format,
    /// The source, given as to `run`.
    #[command(flatten)]
    pub run: Run,
}

/// `lb-agent ct flush`
#[derive(Clone, Debug, Args)]
pub struct Flush {
    /// Only flows of this service: NAMESPACE/NAME or NAME, with :PORT for one port; or a number.
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Where the pins are.
    #[command(flatten)]
    pub pins: Pins,
}

/// `lb-agent map list`
#[derive(Clone, Debug, Args)]
pub struct MapList {
    /// Where the pins are.
    #[command(flatten)]
    pub pins: Pins,
    /// How to print.
    #[command(flatten)]
    pub format: Format,
    /// Once, or at each change.
    #[command(flatten)]
    pub repeat: Repeat,
}

/// Which services.
#[derive(Clone, Debug, Default, Args)]
pub struct Scope {
    /// Only services of this namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Services of all namespaces; so it is without -n.
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
    /// Whether a service, as `namespace/name:port`, is asked for; one whose name is lost only without -n.
    pub fn has(&self, service: Option<&str>) -> bool {
        let Some(wanted) = &self.namespace else { return true };
        let namespace =
            service.and_then(|name| name.split_once('/')).map(|(namespace, _)| namespace);
        namespace == Some(wanted)
    }

    /// Whether what belongs to IPv4, or else to IPv6, is asked for.
    pub const fn has_family(&self, is_v4: bool) -> bool {
        if is_v4 { !self.ipv6 } else { !self.ipv4 }
    }
}

/// How a list is printed.
#[derive(Clone, Copy, Debug, Args)]
pub struct Format {
    /// How to print.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// Leave the line of headings out.
    #[arg(long)]
    pub no_headers: bool,
    /// Decided by the terminal, not by a flag.
    #[arg(skip = has_colours())]
    pub colour: bool,
}

/// Once, or until interrupted.
#[derive(Clone, Copy, Debug, Args)]
pub struct Repeat {
    /// Say it again whenever it changes, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
}

/// How lists are printed.
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
    /// Names, one a line.
    Name,
}

/// Colours are for people: on a terminal, unless they asked for none (no-color.org).
fn has_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stdout().is_terminal()
}
