//! Errors of the data path, each with its remedy.

use std::io;
use std::path::{Path, PathBuf};

use aya::programs::ProgramError;

use super::check::Requirement;
use crate::maps;

/// The failures of the data path, each with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something the machine lacks.
    #[error("{0}")]
    Requirement(Requirement),
    /// The directory cannot be used.
    #[error("{path}: {what}")]
    Directory {
        path: PathBuf,
        /// The fault, and the remedy.
        what: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// Another agent has it.
    #[error(
        "{path} is in use by another agent{}: stop it first; only an agent in another network \
         namespace may use a --bpf-dir of its own",
        .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// Its process, where it can be seen.
        pid: Option<u32>,
    },
    /// Programs of ours are attached whose pins are below another directory.
    #[error(
        "{place} has programs of another lb-agent, whose pins are {pins}: both would decide about \
         each packet, theirs and those of {dir}; {remedy}"
    )]
    Elsewhere {
        /// The first hook that has one.
        place: String,
        /// Where their pins are.
        pins: String,
        /// `--bpf-dir`.
        dir: PathBuf,
        remedy: String,
    },
    /// A pin that is not what its name says.
    #[error(
        "{path} is {found}, expected {wanted}: another program made it, or it is damaged; remove \
         it, or remove everything with `lb-agent cleanup --bpf-dir {dir}`"
    )]
    PinShape {
        /// The pin.
        path: PathBuf,
        found: String,
        /// The value that it should have.
        wanted: String,
        /// `--bpf-dir`.
        dir: PathBuf,
    },
    /// The agent was built without its programs.
    #[error("this build carries no programs (AYA_BUILD_SKIP was set): build again without it")]
    NoObject,
    /// The object was refused.
    #[error(
        "the programs and their maps cannot be loaded; if memory for a map is missing, lower \
         --map-size or raise the memory limit of the pod; otherwise report a bug"
    )]
    Load(#[from] aya::EbpfError),
    /// A program was refused.
    #[error(
        "program {name} cannot be loaded; on a supported kernel (see README.md) this is a bug to \
         report"
    )]
    Program {
        name: &'static str,
        /// The error of the kernel.
        #[source]
        source: ProgramError,
    },
    /// A program that is loaded was refused by a device or a cgroup.
    #[error(
        "program {name} cannot be attached; if the interface exists and the kernel is supported \
         (see README.md), this is a bug to report"
    )]
    Link {
        name: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A pin could not be read, made or removed.
    #[error(
        "pin {path} cannot be read, created or removed; run as root, on a bpffs that is mounted \
         read-write, or choose another --bpf-dir"
    )]
    Pin {
        /// The pin.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A map could not be read or written.
    #[error(transparent)]
    Maps(#[from] maps::Error),
}

/// Why a link was not made; the caller knows which program it is about.
pub(super) enum Failure {
    Link(io::Error),
    Pin(PathBuf, io::Error),
}

impl Failure {
    pub(super) fn named(self, name: &'static str) -> Error {
        match self {
            Self::Link(source) => Error::Link { name, source },
            Self::Pin(path, source) => Error::Pin { path, source },
        }
    }
}

/// Makes the error of a pin.
pub(super) fn pin(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    |source| Error::Pin { path: path.to_owned(), source }
}
