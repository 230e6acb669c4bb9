//! What the programs say of single packets: silent, unless an operator asks for it at start.
//!
//! The level is a constant of the programs, so a silent program carries no code for it. The numbers
//! are those of `COUNTERS`, as `lb_packets_total` names them.

use std::io;

use aya::{Ebpf, EbpfLoader};
use aya_log::{EbpfLogger, LEVEL, Level};
use log::Log;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{info, warn};

/// Which packets are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PacketLog {
    /// None.
    #[default]
    Off,
    /// Those that are dropped, at debug level.
    Drops,
    /// All of them, at trace level: for a rig, not for a busy node.
    All,
}

impl PacketLog {
    /// The constant that the programs are loaded with.
    pub(super) const fn level(self) -> &'static u8 {
        match self {
            Self::Off => &0,
            Self::Drops => &(Level::Debug as u8),
            Self::All => &(Level::Trace as u8),
        }
    }

    /// A loader for our programs, or for others that log as they do.
    pub fn loader(self) -> EbpfLoader<'static> {
        let mut loader = EbpfLoader::new();
        let _: &mut EbpfLoader<'_> = loader.override_global(LEVEL, self.level(), false);
        loader
    }
}

/// The records of loaded programs.
pub struct Records(EbpfLogger<&'static dyn Log>);

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").finish_non_exhaustive()
    }
}

impl Records {
    /// Takes the ring buffer of programs that were just loaded.
    pub(super) fn of(ebpf: &mut Ebpf) -> Option<Self> {
        EbpfLogger::init(ebpf)
            .inspect_err(|error| warn!(%error, "packets are not logged"))
            .ok()
            .map(Self)
    }

    /// Hands every record to the log of this process, until the task is dropped.
    #[expect(unsafe_code, reason = "tokio cannot see that the descriptor stays ours")]
    pub async fn follow(self) -> io::Result<()> {
        // SAFETY: the records own their descriptor, and nothing closes it before they are dropped.
        let records = unsafe { AsyncFd::register_with_interest(self.0, Interest::READABLE) };
        let mut records = records.map_err(io::Error::from)?;
        info!("packets are logged");
        loop {
            let mut ready = records.readable_mut().await?;
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}
