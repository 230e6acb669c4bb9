//! The tracing subscriber that the log flags configure.

mod writer;

use std::io;

use tracing_subscriber::filter::EnvFilter;

pub use self::writer::{LastLines, lost};
use crate::config::LogFormat;

/// Starts logging to standard error at a verbosity; `RUST_LOG` takes precedence.
///
/// Dropping the returned value writes the last lines.
pub fn start_log(format: LogFormat, verbosity: u8) -> io::Result<LastLines> {
    let (lines, flush) = writer::start(io::stderr())?;
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(filter(verbosity)));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(lines)
        // A line that cannot be written must not lead to another line.
        .log_internal_errors(false)
        .with_target(false);
    match format {
        LogFormat::Text => subscriber.with_ansi(false).init(),
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    Ok(flush)
}

/// Returns the log filter for a verbosity. The client library's lines about each attempt need a higher verbosity,
/// because the agent itself logs that a server is not reachable, and the consequences.
fn filter(verbosity: u8) -> String {
    let (ours, client) = match verbosity {
        0..=2 => ("info", "off"),
        3..=4 => ("debug", "warn"),
        5.. => ("trace", "warn"),
    };
    // The programs themselves select the packets that they log (`PacketLog`), so no record of theirs is left out here.
    format!("warn,kube_client={client},lb_ebpf=trace,lb_agent={ours}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_client_logs_only_from_verbosity_3() {
        assert!(filter(2).contains("kube_client=off"));
        assert!(filter(3).contains("kube_client=warn") && filter(3).contains("lb_agent=debug"));
    }
}
