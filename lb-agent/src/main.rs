//! Arguments, logging, wiring, exit codes; nothing else.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command as Process, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, Parser as _};
use lb_agent::cli::{
    AffinityVerb, Cleanup, Cli, Command, ConfigVerb, Ct, Diff, Lb, Log, LogFormat, MapVerb, Run,
    ServiceVerb,
};
use lb_agent::config::Config;
use lb_agent::watch::client::ClientError;
use lb_agent::{chain, config, datapath, run, show};
use tracing_subscriber::filter::EnvFilter;

/// Something was found that should not be, or could not be done.
const FINDING: u8 = 1;
/// Flags or the file of `--config` say what cannot be meant; clap ends with the same.
const USAGE: u8 = 2;
/// There is no data path to ask.
const UNREACHABLE: u8 = 3;
/// SIGTERM to exit at most; tasks that still run are left behind.
const GOODBYE: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let command = Cli::parse().command;
    match execute(command) {
        Ok(code) => code,
        Err(error) => {
            let mut stderr = io::stderr().lock();
            if writeln!(stderr, "error: {}", chain(error.as_ref())).is_err() {
                // Nobody reads it.
            }
            ExitCode::from(code(&error))
        }
    }
}

/// What a failure ends with.
fn code(error: &anyhow::Error) -> u8 {
    let is_absent = matches!(
        error.downcast_ref(),
        Some(show::Error::NoDatapath(_) | show::Error::OtherBuild(_))
    );
    let is_flag = matches!(
        error.downcast_ref(),
        Some(
            run::Error::Datapath(datapath::Error::UnknownMap(_))
                | run::Error::Client(ClientError::Master { .. } | ClientError::MasterParts(_))
        )
    );
    if is_flag || error.is::<config::Error>() {
        USAGE
    } else if is_absent {
        UNREACHABLE
    } else {
        FINDING
    }
}

#[expect(clippy::too_many_lines, reason = "an arm for each verb")]
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
        Command::Cleanup(options) => cleanup(&options),
        Command::Status(options) => {
            let mut is_well = true;
            let _: ExitCode = shown(options.watch, || {
                let dir = &options.pins.bpf_dir;
                let (text, is_well_now) = show::status::status(dir, options.verbose)?;
                is_well = is_well_now;
                Ok(text)
            })?;
            Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(FINDING) })
        }
        Command::Service(ServiceVerb::List(options)) => {
            let (dir, scope, format) = (&options.pins.bpf_dir, &options.scope, options.format);
            shown(format.watch, || Ok(show::services::list(dir, scope, format)?))
        }
        Command::Service(ServiceVerb::Show(options)) => {
            let (name, namespace) = (&options.name, options.namespace.as_deref());
            let (dir, format) = (&options.pins.bpf_dir, options.format);
            shown(format.watch, || Ok(show::services::show(dir, name, namespace, format)?))
        }
        Command::Lb(Lb::List(options)) => {
            let (ipvs, options) = (options.ipvs, options.services);
            let (dir, scope, format) = (&options.pins.bpf_dir, &options.scope, options.format);
            shown(format.watch, || {
                Ok(if ipvs {
                    show::ipvs::list(dir, scope)?
                } else {
                    show::list::list(dir, scope, format)?
                })
            })
        }
        Command::Lb(Lb::Diff(options)) => diff(&options).or_else(|error| {
            // 1 means that they differ, and nothing else.
            let mut stderr = io::stderr().lock();
            writeln!(stderr, "error: {}", chain(error.as_ref())).context("write")?;
            Ok(ExitCode::from(if code(&error) == USAGE { USAGE } else { UNREACHABLE }))
        }),
        Command::Ct(Ct::List(options)) => {
            let (dir, scope, format) = (&options.pins.bpf_dir, &options.scope, options.format);
            shown(format.watch, || Ok(show::flows::list(dir, scope, format)?))
        }
        Command::Ct(Ct::Flush(options)) => {
            let flushed = show::flows::flush(&options.pins.bpf_dir, options.service.as_deref())?;
            print(&flushed)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Affinity(AffinityVerb::List(options)) => {
            let (dir, scope, format) = (&options.pins.bpf_dir, &options.scope, options.format);
            shown(format.watch, || Ok(show::affinity::list(dir, scope, format)?))
        }
        Command::Map(MapVerb::List(options)) => {
            let (dir, format) = (&options.pins.bpf_dir, options.format);
            shown(format.watch, || Ok(show::map::list(dir, format)?))
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "lb-agent", &mut io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Says it, again at each change when watching.
fn shown(is_watching: bool, text: impl FnMut() -> Result<String>) -> Result<ExitCode> {
    let is_screen = io::stdout().is_terminal();
    show::repeat::repeat(is_watching, is_screen, &mut io::stdout(), text)?;
    Ok(ExitCode::SUCCESS)
}

fn agent(options: Run) -> Result<ExitCode> {
    if options.cleanup {
        return cleanup(&Cleanup { pins: options.pins, cgroup: options.cgroup });
    }
    lb_agent::keep_one_heap();
    log(options.log);
    let config = Config::load(&options)?;
    if let Some(file) = &options.write_config_to {
        let text = config.documents();
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.init_only {
        return init(&config);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let result = runtime.block_on(run::run(&options, config));
    runtime.shutdown_timeout(GOODBYE);
    match result? {
        run::End::Asked => Ok(ExitCode::SUCCESS),
        run::End::Changed => {
            // The program that runs, also where its file has been replaced.
            let arguments = std::env::args_os().skip(1);
            let error = Process::new("/proc/self/exe").args(arguments).exec();
            Err(error).context("begin anew")
        }
    }
}

fn diff(options: &Diff) -> Result<ExitCode> {
    let config = Config::load(&options.run)?;
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    let intent = runtime.block_on(run::intent(&options.run, &config))?;
    runtime.shutdown_timeout(GOODBYE);
    for problem in intent.problems {
        writeln!(io::stderr(), "warning: {problem}").context("write")?;
    }
    let (text, is_same) = show::diff::diff(&config.bpf_dir.value, intent.changes, options.format)?;
    print(&text)?;
    Ok(match (intent.is_whole, is_same) {
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(FINDING),
        // What an agent knows of the rest cannot be held against anything.
        (false, _) => ExitCode::from(UNREACHABLE),
    })
}

fn migrate(file: &Path) -> Result<ExitCode> {
    let (name, text) = if file == Path::new("-") {
        ("standard input".into(), io::read_to_string(io::stdin()))
    } else {
        (file.display().to_string(), std::fs::read_to_string(file))
    };
    let text = text.with_context(|| format!("read {name}"))?;
    let migrated = config::migrate::migrate(&name, &text)?;
    let mut stderr = io::stderr().lock();
    for warning in &migrated.warnings {
        writeln!(stderr, "warning: {warning}").context("write")?;
    }
    print(&migrated.documents)?;
    Ok(ExitCode::SUCCESS)
}

fn cleanup(options: &Cleanup) -> Result<ExitCode> {
    let dir = &options.pins.bpf_dir;
    let removed = datapath::cleanup(dir)?;
    for pin in &removed.pins {
        print(&format!("removed {}\n", pin.display()))?;
    }
    if let Some(dir) = &removed.unmounted {
        print(&format!("unmounted {}\n", dir.display()))?;
    }
    let (state, synced) = (run::state_file(dir), run::sync_file(dir));
    for file in [&synced, &state] {
        if std::fs::remove_file(file).is_ok() {
            print(&format!("removed {}\n", file.display()))?;
        }
    }
    // Stays where somebody else keeps something in it.
    drop(state.parent().map(std::fs::remove_dir));
    if removed.pins.is_empty() && removed.unmounted.is_none() {
        print(&format!("nothing to remove in {}\n", dir.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The part for which the agent's own three capabilities are not enough.
fn init(config: &Config) -> Result<ExitCode> {
    let dir = &config.bpf_dir.value;
    let is_mounted = datapath::mount(dir)?;
    let done = if is_mounted { "mounted a bpffs at" } else { "a bpffs already holds" };
    print(&format!("{done} {}\n", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// A reader that went away (`| head`) is no error.
fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("write"),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn log(options: Log) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(filter(options.v)));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_target(false);
    match options.log_format {
        LogFormat::Text => subscriber.with_ansi(false).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
}

/// What is logged where `RUST_LOG` says nothing. A server that is away is told by us, with what follows from it; the
/// client's own lines about each attempt are for those who look closer.
fn filter(verbosity: u8) -> String {
    let (ours, client) = match verbosity {
        0..=2 => ("info", "off"),
        3..=4 => ("debug", "warn"),
        5.. => ("trace", "warn"),
    };
    format!("warn,kube_client={client},kube_runtime={client},lb_ebpf=trace,lb_agent={ours}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_of_the_api_server_is_silent_unless_asked_for() {
        assert!(filter(2).contains("kube_client=off"));
        assert!(filter(3).contains("kube_client=warn") && filter(3).contains("lb_agent=debug"));
    }

    fn fails_with(arguments: &[&str]) -> (u8, String) {
        let command = Cli::parse_from([&["lb-agent"], arguments].concat()).command;
        let error = execute(command).expect_err("arguments that cannot be meant");
        (code(&error), chain(error.as_ref()))
    }

    #[test]
    fn what_cannot_be_meant_is_a_usage_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config");
        std::fs::write(&file, "kind: Teapot").expect("a file");
        let file = file.to_str().expect("a path in UTF-8");
        let cases: [(&[&str], u8, &str); 5] = [
            (&["config", "view", "--config", file], USAGE, "Teapot"),
            (&["config", "view", "--config", "/nowhere/config"], USAGE, "/nowhere/config"),
            (&["config", "view", "--nodeport-addresses", "pub"], USAGE, "--nodeport-addresses"),
            (&["config", "migrate", "/nowhere/file"], FINDING, "/nowhere/file"),
            (&["status", "--bpf-dir", "/nowhere/bpf"], UNREACHABLE, "/nowhere/bpf"),
        ];
        for (arguments, expected, named) in cases {
            let (code, text) = fails_with(arguments);
            assert_eq!(code, expected, "{arguments:?}: {text}");
            assert!(text.contains(named), "{arguments:?}: {text}");
        }
    }
}
