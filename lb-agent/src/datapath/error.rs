//! Errors of the data path.

use std::io;
use std::path::{Path, PathBuf};

use aya::programs::ProgramError;

use super::check::Requirement;
use crate::maps;

/// An error of the data path. Each message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks a requirement.
    #[error("{0}")]
    Requirement(Requirement),
    /// A directory is not usable.
    #[error("{path}: {what}")]
    Directory {
        path: PathBuf,
        /// The fault and its remedy.
        what: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// Another agent holds the lock of the directory.
    #[error(
        "{path} is in use by another agent{}: stop it first; only an agent in another network \
         namespace may use a --bpf-dir of its own",
        .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The `--bpf-dir` in use.
        path: PathBuf,
        /// Process id of that agent, if it is visible from here.
        pid: Option<u32>,
    },
    /// Programs of this project are attached, with pins below another directory.
    #[error(
        "{place} has programs of another lb-agent, whose pins are {pins}: they and the programs of {dir} \
         would both handle each packet; {remedy}"
    )]
    Elsewhere {
        /// The first such hook.
        place: String,
        /// The place of the pins of these programs.
        pins: String,
        /// `--bpf-dir`.
        dir: PathBuf,
        remedy: String,
    },
    /// A pinned object is not what its name says.
    #[error(
        "{path} is {found}, expected {wanted}: another program made it, or it is damaged; remove \
         it, or remove everything with `lb-agent cleanup --bpf-dir {dir}`"
    )]
    PinShape {
        /// The pin with the wrong object.
        path: PathBuf,
        found: String,
        /// The shape of the map that this build expects.
        wanted: String,
        /// `--bpf-dir`.
        dir: PathBuf,
    },
    /// The agent was built without its programs.
    #[error("this binary contains no eBPF programs: build it again without AYA_BUILD_SKIP")]
    NoObject,
    /// The kernel or the loader refused the object.
    #[error(
        "the programs and their maps cannot be loaded; if memory for a map is missing, lower \
         --map-size or raise the memory limit of the pod; otherwise report a bug"
    )]
    Load(#[from] aya::EbpfError),
    /// The verifier refused a program.
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
    /// An interface or a cgroup refused a loaded program.
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
    /// Programs of other owners in a cgroup exclude ours.
    #[error(
        "program {name} cannot be attached beside the programs {programs:?} of other owners in this cgroup or those above \
         it: they were attached without `multi`, or there are 64 of them; attach them with `multi`"
    )]
    Excluded {
        name: &'static str,
        /// The ids of the programs that run there.
        programs: Vec<u32>,
    },
    /// A pin cannot be read, created or removed.
    #[error(
        "pin {path} cannot be read, created or removed; run as root, on a bpffs that is mounted \
         read-write, or choose another --bpf-dir"
    )]
    Pin {
        /// The pin that failed.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A map cannot be read or written.
    #[error(transparent)]
    Maps(#[from] maps::Error),
}

/// The reason why a link was not made. The caller adds the name of the program.
pub(super) enum LinkFailure {
    Link(io::Error),
    /// Programs of other owners exclude ours: their ids.
    Excluded(Vec<u32>),
    Pin(PathBuf, io::Error),
}

impl LinkFailure {
    pub(super) fn named(self, name: &'static str) -> Error {
        match self {
            Self::Link(source) => Error::Link { name, source },
            Self::Excluded(programs) => Error::Excluded { name, programs },
            Self::Pin(path, source) => Error::Pin { path, source },
        }
    }
}

/// Makes the error of a pin.
pub(super) fn pin(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    |source| Error::Pin { path: path.to_owned(), source }
}
