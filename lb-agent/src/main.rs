//! The entry point: parses the command line, runs the verb, and turns its result into an exit code. The verbs are in
//! `verbs`.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lb_agent::cli::{AffinityVerb, Cli, Command, ConfigVerb, Lb, LbList, MapVerb, ServiceVerb};
use lb_agent::config::Config;
use lb_agent::datapath::OpenError;
use lb_agent::takeover::VerbError;
use lb_agent::watch::client::ClientError;
use lb_agent::{chain, config, run, show};

#[cfg(feature = "standalone")]
mod standalone;
mod verbs;

use verbs::{
    agent, completions, diff, drain_and_cleanup, explain, flows, init, listed, migrate, print,
    print_or_watch, takeover,
};

/// Exit code for a finding (such as a difference or a problem) and for a failure.
const FINDING: u8 = 1;
/// Exit code for invalid flags or an invalid `--config` file; clap uses the same.
const USAGE: u8 = 2;
/// Exit code if there is no data path to query.
const UNREACHABLE: u8 = 3;

/// Time limit for writing the error message of a failed command.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let command = Cli::of_process().command;
    match execute(command) {
        Ok(code) => code,
        Err(error) => {
            say(format!("error: {}\n", chain(error.as_ref())));
            ExitCode::from(code(&error))
        }
    }
}

/// Writes to standard error, and gives up after a while: a full pipe without a reader must not keep the process from
/// ending.
///
/// The log's thread may be blocked in the same pipe while it holds the lock of `io::stderr`, so a thread of its own
/// writes.
fn say(text: String) {
    let (written, is_written) = mpsc::channel();
    let writing = thread::Builder::new().spawn(move || {
        let outcome = io::stderr().write_all(text.as_bytes());
        written.send(outcome.is_ok())
    });
    if writing.is_ok() && is_written.recv_timeout(LAST_WORDS).is_err() {
        // Without a reader the message is lost; the exit code remains.
    }
}

/// Returns the exit code of a failure.
fn code(error: &anyhow::Error) -> u8 {
    let open = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(show::Error::Open(open)), _) | (_, Some(VerbError::Open(open))) => Some(open),
        _ => None,
    };
    let is_absent = open.is_some_and(|open| !matches!(open, OpenError::Maps(_)));
    let is_flag = matches!(
        error.downcast_ref(),
        Some(run::Error::Client(ClientError::Master { .. } | ClientError::MasterParts(_)))
    );
    if is_flag || error.is::<config::Error>() {
        USAGE
    } else if is_absent {
        UNREACHABLE
    } else {
        FINDING
    }
}

fn execute(command: Command) -> Result<ExitCode> {
    match command {
        Command::Run(options) => agent(*options),
        Command::Init(options) => init(&Config::load(&options)?),
        Command::Config(ConfigVerb::View(options)) => {
            let config = Config::load(&options)?;
            print(&config.table())?;
            for warning in &config.warnings {
                print(&format!("warning: {warning}\n"))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Config(ConfigVerb::Migrate { file }) => migrate(&file),
        Command::Cleanup(options) => drain_and_cleanup(&options),
        Command::Takeover(options) => takeover(&options),
        Command::Status(options) => {
            // With `--watch` the state of the last screen decides the exit code.
            let mut is_well = true;
            let _: ExitCode = print_or_watch(options.repeat, || {
                let dir = &options.pins.bpf_dir;
                let (text, is_well_now) = show::status::status(dir, options.verbose)?;
                is_well = is_well_now;
                Ok(text)
            })?;
            Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(FINDING) })
        }
        Command::Service(ServiceVerb::List(options)) => listed(&options, show::services::list),
        Command::Service(ServiceVerb::Show(options)) => {
            let (name, namespace) = (&options.name, options.namespace.as_deref());
            let (dir, format) = (&options.pins.bpf_dir, options.format);
            print_or_watch(options.repeat, || {
                Ok(show::services::show(dir, name, namespace, format)?)
            })
        }
        Command::Lb(Lb::List(LbList { ipvs: true, list })) => {
            listed(&list, |dir, scope, _| show::ipvs::list(dir, scope))
        }
        Command::Lb(Lb::List(options)) => listed(&options.list, show::list::list),
        Command::Lb(Lb::Diff(options)) => diff(&options).or_else(|error| {
            // Exit code 1 means "different" here, so any failure of the comparison gets another code.
            let mut stderr = io::stderr().lock();
            writeln!(stderr, "error: {}", chain(error.as_ref())).context("write")?;
            Ok(ExitCode::from(if code(&error) == USAGE { USAGE } else { UNREACHABLE }))
        }),
        Command::Explain(options) => explain(&options),
        Command::Ct(verb) => flows(verb),
        Command::Affinity(AffinityVerb::List(options)) => listed(&options, show::affinity::list),
        Command::Map(MapVerb::List(options)) => {
            let (dir, format) = (&options.pins.bpf_dir, options.format);
            print_or_watch(options.repeat, || Ok(show::map::list(dir, format)?))
        }
        #[cfg(feature = "standalone")]
        Command::Serve(options) => standalone::serve(&options),
        #[cfg(feature = "standalone")]
        Command::Kubeconfig(options) => standalone::kubeconfig(&options),
        Command::Completions { shell } => completions(shell),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn fails_with(arguments: &[&str]) -> (u8, String) {
        let command = Cli::parse_from([&["lb-agent"], arguments].concat()).command;
        let error = execute(command).expect_err("arguments that cannot be meant");
        (code(&error), chain(error.as_ref()))
    }

    #[test]
    fn errors_have_the_exit_code_of_their_kind() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("config");
        std::fs::write(&file, "kind: Teapot").expect("a file");
        let file = file.to_str().expect("a path in UTF-8");
        let cases: [(&[&str], u8, &str); 7] = [
            (&["config", "view", "--config", file], USAGE, "Teapot"),
            (&["config", "view", "--config", "/nowhere/config"], USAGE, "/nowhere/config"),
            (&["config", "view", "--nodeport-addresses", "pub"], USAGE, "--nodeport-addresses"),
            (&["config", "migrate", "/nowhere/file"], FINDING, "/nowhere/file"),
            (&["status", "--bpf-dir", "/nowhere/bpf"], UNREACHABLE, "/nowhere/bpf"),
            (&["takeover", "--bpf-dir", "/nowhere/bpf"], UNREACHABLE, "/nowhere/bpf"),
            (&["cleanup", "--drain", "--bpf-dir", "/nowhere/bpf"], UNREACHABLE, "/nowhere/bpf"),
        ];
        for (arguments, expected, named) in cases {
            let (code, text) = fails_with(arguments);
            assert_eq!(code, expected, "{arguments:?}: {text}");
            assert!(text.contains(named), "{arguments:?}: {text}");
        }
    }
}
