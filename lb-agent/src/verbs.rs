//! What each verb does, up to its exit code: the wiring between the library and the terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command as Process, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;
use lb_agent::cli::{Cli, Diff, Format, Repeat, Scope, Services, Start};
use lb_agent::config::{self, Config};
use lb_agent::{datapath, run, show};

use crate::{FINDING, UNREACHABLE};

/// SIGTERM to exit at most; tasks that still run are left behind.
const GOODBYE: Duration = Duration::from_millis(200);

/// Says it, again at each change when watching.
pub(crate) fn shown(when: Repeat, text: impl FnMut() -> Result<String>) -> Result<ExitCode> {
    let is_screen = io::stdout().is_terminal();
    show::repeat::repeat(when.watch, is_screen, &mut io::stdout(), text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints one.
type List = fn(&Path, &Scope, Format) -> Result<String, show::Error>;

/// A list of what belongs to services.
pub(crate) fn listed(options: &Services, list: List) -> Result<ExitCode> {
    let Services { pins, scope, format, repeat } = options;
    shown(*repeat, || Ok(list(&pins.bpf_dir, scope, *format)?))
}

/// The agent, or what is to be done in its place.
pub(crate) fn agent(start: Start) -> Result<ExitCode> {
    let Start { run: options, instead } = start;
    lb_agent::keep_one_heap();
    let config = Config::load(&options)?;
    config.log_format.value.start(config.verbosity.value);
    if let Some(file) = instead.write_config_to() {
        let text = config.documents();
        std::fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if instead.cleanup {
        return cleanup(&config.bpf_dir.value);
    }
    if instead.init_only {
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

/// What the source asks for against what the maps hold.
pub(crate) fn diff(options: &Diff) -> Result<ExitCode> {
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

/// kube-proxy's file becomes ours.
pub(crate) fn migrate(file: &Path) -> Result<ExitCode> {
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

/// Takes everything off, and says what that was.
pub(crate) fn cleanup(dir: &Path) -> Result<ExitCode> {
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
pub(crate) fn init(config: &Config) -> Result<ExitCode> {
    let dir = &config.bpf_dir.value;
    let is_mounted = datapath::mount(dir)?;
    let done = if is_mounted { "mounted a bpffs at" } else { "a bpffs already holds" };
    print(&format!("{done} {}\n", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Completions for a shell. They are made whole before any is written: their maker panics where nobody reads on.
pub(crate) fn completions(shell: Shell) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lb-agent", &mut text);
    print(&String::from_utf8(text).context("completions in UTF-8")?)?;
    Ok(ExitCode::SUCCESS)
}

/// A reader that went away (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("write"),
        Ok(()) | Err(_) => Ok(()),
    }
}
