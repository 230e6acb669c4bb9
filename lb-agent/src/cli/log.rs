//! Log flags, and the tracing subscriber that they configure.

mod writer;

use std::io;

use clap::{Args, ValueEnum};
use tracing_subscriber::filter::EnvFilter;

pub use self::writer::{LastLines, lost};

/// Log flags.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Logging")]
pub struct Log {
    /// Log format [default: text]. Same as kube-proxy's --logging-format.
    #[arg(long, alias = "logging-format", value_name = "FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// Log verbosity: 0 to 2 info, 3 and 4 debug, 5 and more trace [default: 2].
    #[arg(short, long, value_name = "N")]
    pub v: Option<u8>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    /// Starts logging to standard error at a verbosity; `RUST_LOG` takes precedence.
    ///
    /// Dropping the returned value writes the last lines.
    pub fn start(self, verbosity: u8) -> io::Result<LastLines> {
        let (lines, flush) = writer::start(io::stderr())?;
        let filter =
            EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(filter(verbosity)));
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(lines)
            // A line that cannot be written must not lead to another line.
            .log_internal_errors(false)
            .with_target(false);
        match self {
            Self::Text => subscriber.with_ansi(false).init(),
            Self::Json => subscriber.json().flatten_event(true).init(),
        }
        Ok(flush)
    }
}

/// Returns the log filter for a verbosity. The client library's lines about each attempt need a higher verbosity,
/// because the agent itself logs that a server is not reachable, and the consequences.
fn filter(verbosity: u8) -> String {
    let (ours, client) = match verbosity {
        0..=2 => ("info", "off"),
        3..=4 => ("debug", "warn"),
        5.. => ("trace", "warn"),
    };
    format!("warn,kube_client={client},lb_ebpf=trace,lb_agent={ours}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_of_the_api_server_is_silent_unless_asked_for() {
        assert!(filter(2).contains("kube_client=off"));
        assert!(filter(3).contains("kube_client=warn") && filter(3).contains("lb_agent=debug"));
    }
}
