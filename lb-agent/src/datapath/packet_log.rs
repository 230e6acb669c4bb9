//! The packet log of the programs: off unless an operator enables it at the start.
//!
//! The level is a constant of the programs, so programs without a log contain no code for it. A record contains the
//! index in `COUNTERS` that counted the packet; here it becomes hook, verdict and reason, with the names of the
//! metrics.

use std::io;

use aya::{Ebpf, EbpfLoader};
use aya_log::{EbpfLogger, LEVEL, Level};
use lb_common::event::{Hook, Verdict, counted};
use log::{Log, Metadata, Record};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{debug, info, trace, warn};

use super::release;

/// Which packets are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PacketLog {
    /// No packet is logged.
    #[default]
    Off,
    /// Dropped packets; logged at debug level, which -v does not hide.
    Drops,
    /// All packets; logged at trace level, which -v does not hide. For tests, not for a busy node.
    All,
}

impl PacketLog {
    /// Returns the value of the programs' constant for the log level.
    pub(super) const fn level(self) -> &'static u8 {
        match self {
            Self::Off => &0,
            Self::Drops => &(Level::Debug as u8),
            Self::All => &(Level::Trace as u8),
        }
    }

    /// Returns a loader for our programs, or for others with the same log.
    pub fn loader(self) -> EbpfLoader<'static> {
        let mut loader = EbpfLoader::new();
        let _: &mut EbpfLoader<'_> = loader.override_global(LEVEL, self.level(), false);
        // Older verifiers refuse map keys in memory that a function gets by pointer: the programs copy them into a map.
        if release::is_before(release::KEYS_IN_MEMORY) {
            let _: &mut EbpfLoader<'_> = loader.override_global("ASKS_FOR_MAPS", &1_u8, false);
        }
        loader
    }
}

/// The log records of loaded programs.
pub struct Records(EbpfLogger<NameLogger>);

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").finish_non_exhaustive()
    }
}

impl Records {
    /// Takes the ring buffer of programs that were just loaded.
    pub(super) fn of(ebpf: &mut Ebpf) -> Option<Self> {
        EbpfLogger::init_with_logger(ebpf, NameLogger)
            .inspect_err(|error| warn!(%error, "packet log could not be opened"))
            .ok()
            .map(Self)
    }

    /// Writes every record to this process's log until the task is dropped.
    pub async fn follow(self) -> io::Result<()> {
        #[expect(deprecated, reason = "its successor is unsafe; the records own their descriptor")]
        let mut records = AsyncFd::with_interest(self.0, Interest::READABLE)?;
        info!("packet log is on");
        loop {
            let mut ready = records.readable_mut().await?;
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}

/// A logger that replaces the numbers in a record by names.
struct NameLogger;

impl Log for NameLogger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let text = record.args().to_string();
        let Some(PacketRecord { hook, verdict, index }) = PacketRecord::of(&text) else {
            warn!(target: "lb_ebpf", text, "packet log: unknown record");
            return;
        };
        // Drops are of interest on their own and rare; all other packets are logged at the most detailed level only.
        let (hook, class, reason) = (hook.name(), verdict.class(), verdict.name());
        match verdict {
            Verdict::Drop(_) => debug!(target: "lb_ebpf", hook, reason, index, "packet dropped"),
            Verdict::Pass(_)
            | Verdict::Translated(_)
            | Verdict::Returned(_)
            | Verdict::Redirected(_) => {
                trace!(target: "lb_ebpf", hook, verdict = class, reason, index, "packet");
            }
        }
    }

    fn flush(&self) {}
}

/// A record about a packet.
#[derive(Debug, PartialEq, Eq)]
struct PacketRecord {
    hook: Hook,
    verdict: Verdict,
    /// Interface index; 0 if the program does not know it.
    index: u32,
}

impl PacketRecord {
    /// Parses `... counter N device M`, as `lb-ebpf/src/report.rs` writes it.
    fn of(text: &str) -> Option<Self> {
        let number = |name: &str| {
            let mut words = text.split(' ').skip_while(|word| *word != name).skip(1);
            words.next()?.parse().ok()
        };
        let (hook, verdict) = counted(number("counter")?)?;
        Some(Self { hook, verdict, index: number("device")? })
    }
}

#[cfg(test)]
mod tests {
    use lb_common::event::{COUNTERS, DropReason, PassReason, verdict_counter};

    use super::*;

    #[test]
    fn numbers_become_names() {
        for (hook, verdict, text) in [
            (Hook::ExternalIngress, Verdict::Drop(DropReason::SourceNotAllowed), "packet dropped:"),
            (Hook::PodIngress, Verdict::Pass(PassReason::NotOurs), "packet:"),
        ] {
            let text = format!("{text} counter {} device 5", verdict_counter(hook, verdict));
            assert_eq!(PacketRecord::of(&text), Some(PacketRecord { hook, verdict, index: 5 }));
        }
    }

    #[test]
    fn malformed_packet_messages_are_rejected() {
        let event = format!("packet: counter {} device 5", COUNTERS - 1);
        for text in ["", "packet: counter x device 5", "packet: counter 1", &event] {
            assert_eq!(PacketRecord::of(text), None, "{text}");
        }
    }
}
