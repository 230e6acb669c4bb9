//! The verbs: they connect the library to the terminal and return exit codes.

mod cleanup;

use std::io::{self, BufWriter, ErrorKind, IsTerminal as _, Write};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command as Process, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;
use lb_agent::cli::{
    Cli, Ct, CtList, Diff, Explain, Format, ListArguments, Repeat, Scope, Start, TakeoverVerb,
    Transport, start_log,
};
use lb_agent::config::flags::Run;
use lb_agent::config::{self, Config};
use lb_agent::node::host::conntrack::NetfilterTimeouts;
use lb_agent::show::explain::ClientPacket;
use lb_agent::state_file::conntrack_file;
use lb_agent::{datapath, run, show, takeover};
use lb_common::addr::Protocol;

use self::cleanup::cleanup;
pub(crate) use self::cleanup::drain_and_cleanup;

use crate::{FINDING, UNREACHABLE};

/// Longest time that the runtime waits for its tasks at the end; tasks that still run then are abandoned.
const GOODBYE: Duration = Duration::from_millis(200);

/// Prints the text, and again at each change when watching.
pub(crate) fn print_or_watch(
    when: Repeat,
    text: impl FnMut() -> Result<String>,
) -> Result<ExitCode> {
    let is_screen = io::stdout().is_terminal();
    show::repeat::repeat(when.watch, is_screen, &mut io::stdout(), text)?;
    Ok(ExitCode::SUCCESS)
}

/// A function that renders one list from the pins.
type ListFunction = fn(&Path, &Scope, Format) -> Result<String, show::Error>;

/// Prints a list, once or with `--watch` after each change.
pub(crate) fn listed(options: &ListArguments, list: ListFunction) -> Result<ExitCode> {
    let ListArguments { pins, scope, format, repeat } = options;
    print_or_watch(*repeat, || Ok(list(&pins.bpf_dir, scope, *format)?))
}

/// Lists or deletes flows.
pub(crate) fn flows(verb: Ct) -> Result<ExitCode> {
    match verb {
        Ct::List(CtList { filter, list: ListArguments { pins, scope, format, repeat } }) => {
            let list =
                |to: &mut dyn Write| show::flows::list(&pins.bpf_dir, &scope, &filter, format, to);
            if repeat.watch {
                // One text is compared with the next.
                return print_or_watch(repeat, || {
                    let mut text = Vec::new();
                    list(&mut text)?;
                    String::from_utf8(text).context("a list in UTF-8")
                });
            }
            // The list is written while it is read: a full table is too large for one text.
            match list(&mut BufWriter::new(io::stdout().lock())) {
                Err(show::Error::Write(error)) if error.kind() == ErrorKind::BrokenPipe => {}
                listed => listed?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Ct::Flush(options) => {
            print(&show::flows::flush(&options.pins.bpf_dir, &options.filter)?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Explains the fate of a client's first packet. Exit code 1 if the packet reaches no backend.
pub(crate) fn explain(options: &Explain) -> Result<ExitCode> {
    let protocol = match options.protocol {
        Transport::Tcp => Protocol::TCP,
        Transport::Udp => Protocol::UDP,
        Transport::Sctp => Protocol::SCTP,
    };
    let (from, device) = (options.client.0, options.device.clone());
    let asked = ClientPacket { from, to: options.to, protocol, device };
    let explanation = show::explain::explain(&options.pins.bpf_dir, &asked)?;
    print(&explanation.print(options.format.output)?)?;
    Ok(if explanation.arrives() { ExitCode::SUCCESS } else { ExitCode::from(FINDING) })
}

/// Runs the agent, or the task that the flags request in its place.
pub(crate) fn agent(start: Start) -> Result<ExitCode> {
    let Start { run: options, instead } = start;
    lb_agent::keep_one_heap();
    let config = configuration(&options, run::handed_over())?;
    let log =
        start_log(config.log_format.value, config.verbosity.value).context("start logging")?;
    lb_agent::keep_name();
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
    run::take_priority();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let result = runtime.block_on(run::run(&options, config));
    // A thread may hang in the kernel or in a credential plugin; the process ends all the same.
    runtime.shutdown_timeout(GOODBYE);
    // The exec below runs no destructors, so the log is flushed here.
    drop(log);
    match result? {
        run::Outcome::Stop => Ok(ExitCode::SUCCESS),
        run::Outcome::Restart(handover) => {
            // This path is the running program, even if its file has been replaced.
            let mut again = Process::new("/proc/self/exe");
            let mut arguments = std::env::args_os();
            again.arg0(arguments.next().unwrap_or_else(|| "lb-agent".into())).args(arguments);
            handover.announce_to(&mut again);
            Err(again.exec()).context("restart")
        }
    }
}

/// Reads the configuration. A text that the run before handed over was checked; the file may be invalid now, which must
/// not end the agent.
fn configuration(options: &Run, handed_over: Option<String>) -> Result<Config, config::Error> {
    match handed_over.filter(|_| options.config_file().is_some()) {
        Some(text) => Config::of(options, Some(&text)),
        None => Config::load(options),
    }
}

/// Compares the plans of the source with the maps.
pub(crate) fn diff(options: &Diff) -> Result<ExitCode> {
    let config = Config::load(&options.run)?;
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    let desired = runtime.block_on(run::desired_state(&options.run, &config))?;
    runtime.shutdown_timeout(GOODBYE);
    for problem in desired.problems {
        writeln!(io::stderr(), "warning: {problem}").context("write")?;
    }
    let (text, is_same) = show::diff::diff(&config.bpf_dir.value, desired.changes, options.format)?;
    print(&text)?;
    Ok(match (desired.is_whole, is_same) {
        (true, true) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(FINDING),
        // The source was read only in part, so the other Services cannot be compared.
        (false, _) => ExitCode::from(UNREACHABLE),
    })
}

/// Prints kube-proxy's configuration file as files for this agent.
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

/// Reports what is left of kube-proxy.
pub(crate) fn takeover(options: &TakeoverVerb) -> Result<ExitCode> {
    let asked = takeover::Options {
        removes: options.remove_rules,
        waits: options.wait,
        within: options.timeout.map(Duration::from_secs),
    };
    let is_over = takeover::takeover(&options.pins.bpf_dir, asked, &mut io::stdout())?;
    Ok(if is_over { ExitCode::SUCCESS } else { ExitCode::from(FINDING) })
}

/// Mounts the bpffs, looks for programs of other runs and raises timeouts of netfilter, for which the privileges of the
/// running agent are not enough.
pub(crate) fn init(config: &Config) -> Result<ExitCode> {
    let dir = &config.bpf_dir.value;
    let is_mounted = datapath::mount(dir)?;
    // The agent repeats this check with fewer privileges, and then finds no programs whose pins a mount hides.
    datapath::refuse_others(dir, &config.cgroup())?;
    let done = if is_mounted { "mounted a bpffs at" } else { "already on a bpffs:" };
    print(&format!("{done} {}\n", dir.display()))?;
    let timeouts = NetfilterTimeouts { record: conntrack_file(dir), lifetimes: config.lifetimes() };
    for raise in timeouts.raise() {
        print(&format!("{raise}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the completions for a shell. They are generated before any is written, because `clap_complete` panics when a
/// write fails, for example after `| head`.
pub(crate) fn completions(shell: Shell) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lb-agent", &mut text);
    print(&String::from_utf8(text).context("completions in UTF-8")?)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a text to standard output. A reader that has closed the pipe (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("write"),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use lb_agent::cli::Command;

    use super::*;

    #[test]
    fn run_in_the_same_process_does_not_read_the_file_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("config.yaml");
        let path = file.to_str().expect("a path in UTF-8");
        let command = Cli::parse_from(["lb-agent", "run", "--config", path]).command;
        let Command::Run(start) = command else { panic!("{command:?}") };
        let checked = "apiVersion: lb.dev/v1alpha1\nkind: AgentConfiguration\nbpfDir: /a\n";
        for now in [None, Some(""), Some("kind: Teap")] {
            if let Some(now) = now {
                std::fs::write(&file, now).expect("a file");
            }
            let config = configuration(&start.run, Some(checked.into())).expect("the checked text");
            assert_eq!(config.bpf_dir.value, Path::new("/a"), "{now:?}");
            // A change of the file is a difference to this text.
            assert_eq!(config.text.as_deref(), Some(checked));
        }
        assert!(configuration(&start.run, None).is_err());
    }
}
