//! What can go wrong with the data path, each with the remedy.

use std::path::PathBuf;

use aya::programs::ProgramError;

use super::check::Requirement;
use crate::maps;

/// What went wrong, each with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something the machine lacks.
    #[error("{0}")]
    Requirement(Requirement),
    /// The folder cannot be used.
    #[error("{path}: {what}")]
    Folder {
        /// Which.
        path: PathBuf,
        /// What, and the remedy.
        what: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Another agent has it.
    #[error(
        "{path} is in use by another agent{}: stop it, or give this one its own --bpf-dir",
        .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// Its process, where it can be seen.
        pid: Option<u32>,
    },
    /// A pin that is not what its name says.
    #[error(
        "{path} is {found}, but should be {wanted}: it is foreign or damaged; \
         remove it, or everything with `lb-agent cleanup --bpf-dir {dir}`"
    )]
    PinShape {
        /// The pin.
        path: PathBuf,
        /// What it is.
        found: String,
        /// What it should be.
        wanted: String,
        /// `--bpf-dir`.
        dir: PathBuf,
    },
    /// No such map, or not one whose size can be chosen.
    #[error(
        "map {0} does not exist or has a fixed size; choose among {all}",
        all = maps::Shape::sizable()
    )]
    UnknownMap(String),
    /// The agent was built without its programs.
    #[error("this build carries no programs (AYA_BUILD_SKIP was set): build again without it")]
    NoObject,
    /// The object was refused.
    #[error(
        "the programs and their maps cannot be loaded; a map that lacks memory needs a smaller \
         --map-size or a larger limit of the pod, anything else is a fault to report"
    )]
    Load(#[from] aya::EbpfError),
    /// A program was refused.
    #[error(
        "program {name} cannot be loaded or attached; on a kernel that README.md names this is a \
         fault to report"
    )]
    Program {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        #[source]
        source: ProgramError,
    },
    /// A pin could not be read, made or removed.
    #[error(
        "pin {path} cannot be read, made or removed; run as root, on a bpffs that is mounted \
         read-write, or choose another --bpf-dir"
    )]
    Pin {
        /// The pin.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// A map could not be read or written.
    #[error(transparent)]
    Maps(#[from] maps::Error),
}
