//! The programs in the kernel: loads them over the pinned maps, attaches them, replaces those of an earlier run.
//!
//! Everything lies below `<bpf-dir>/<layout>`: `maps`, `programs`, and `links` by interface index or
//! socket hook. Links are pinned, so packets are served whether an agent runs or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use aya::programs::ProgramError;
use tracing::{info, warn};

use crate::maps::{self, Maps, Newer, SHAPES};

mod bpffs;
mod check;
mod cleanup;
mod features;
mod handover;
#[cfg(test)]
mod layout;
mod links;
mod lock;
mod meaning;
mod packet_log;
mod previous;
mod programs;
mod reuse;
mod watchdog;
mod xdp;

pub use crate::syscall::Hooked;
pub use check::{Requirement, capabilities, find_cgroup2, requirements};
pub use cleanup::{Removed, cleanup};
use handover::Place;
pub use links::{Direction, Role};
use lock::Lock;
pub use packet_log::{PacketLog, Records};
use previous::Previous;
use programs::Programs;
pub use watchdog::{Fault, Findings, beside, beside_in_cgroup};
pub use xdp::{OCCUPIED, is_accelerated};

/// Name of the layout of maps and pins. It moves with every change of a shared type that old programs cannot read.
pub const LAYOUT: &str = "v2";

/// The socket hooks, named as the programs are.
pub const SOCKET_HOOKS: [&str; 8] = [
    "connect4",
    "connect6",
    "sendmsg4",
    "sendmsg6",
    "recvmsg4",
    "recvmsg6",
    "peername4",
    "peername6",
];

/// The tc programs.
pub const CLASSIFIERS: [&str; 4] = ["pod_ingress", "pod_egress", "edge_ingress", "edge_egress"];

/// The compiled programs: the ELF object that `build.rs` made of `lb-ebpf`.
pub const fn object() -> &'static [u8] {
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lb-ebpf"))
}

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
    #[error("load the object")]
    Load(#[from] aya::EbpfError),
    /// A program was refused.
    #[error("program {name}")]
    Program {
        /// Its name.
        name: &'static str,
        /// What the kernel said.
        #[source]
        source: ProgramError,
    },
    /// A pin could not be read, made or removed.
    #[error("pin {path}")]
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

/// Where things are.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder on a bpffs; mounted if it is none.
    pub bpf_dir: PathBuf,
    /// The cgroup whose sockets the socket hooks see.
    pub cgroup: PathBuf,
    /// Entries of maps that shall not have their default.
    pub sizes: BTreeMap<String, u32>,
    /// Which packets the programs log.
    pub packet_log: PacketLog,
}

/// The loaded programs and the pins of one node. Dropping it leaves everything attached.
#[derive(Debug)]
pub struct Datapath {
    programs: Programs,
    dir: PathBuf,
    /// By interface index: the device's name, and what it is.
    attached: BTreeMap<u32, (String, Role)>,
    /// By interface index: devices with the XDP program.
    accelerated: BTreeSet<u32>,
    /// The folder of the cgroup whose sockets are served.
    cgroup: Option<File>,
    insisted: watchdog::Insisted,
    /// Maps that were replaced by ones of another size, until the programs let go of them.
    replaced: Vec<reuse::Replaced>,
    /// An earlier run had begun to take over and did not end it.
    is_resumed: bool,
    /// What serves until everything is programmed.
    previous: Option<Previous>,
    since: Instant,
    _lock: Lock,
}

/// Makes sure that the folder for pins lies on a bpffs, and says whether one had to be mounted.
pub fn mount(bpf_dir: &Path) -> Result<bool, Error> {
    let was = bpffs::is_bpffs(bpf_dir)
        || bpf_dir.parent().is_some_and(|parent| !bpf_dir.exists() && bpffs::is_bpffs(parent));
    bpffs::prepare(bpf_dir)?;
    Ok(!was)
}

impl Datapath {
    /// Takes the folder over, loads the programs over the maps there (or new ones), attaches nothing yet.
    pub fn load(options: &Options) -> Result<Self, Error> {
        if object().is_empty() {
            return Err(Error::NoObject);
        }
        if let Some(missing) = requirements(&options.cgroup).into_iter().next() {
            return Err(Error::Requirement(missing));
        }
        let sizes = sizes(options)?;
        bpffs::prepare(&options.bpf_dir)?;
        let lock = Lock::take(&options.bpf_dir)?;
        let since = Instant::now();
        let previous = Previous::find(&options.bpf_dir)?;
        let dir = options.bpf_dir.join(LAYOUT);
        for folder in ["maps", "links", "programs"].map(|name| dir.join(name)) {
            std::fs::create_dir_all(&folder).map_err(|source| Error::Folder {
                path: folder.clone(),
                what: "cannot be made".into(),
                source,
            })?;
        }
        meaning::note(&dir, &options.bpf_dir)?;
        let replaced = reuse::prepare(&dir.join("maps"), &options.bpf_dir, &sizes)?;
        let is_beside = replaced.iter().any(reuse::Replaced::is_memory);
        let programs = Programs::prepare(&dir, &sizes, options.packet_log, is_beside)?;
        let maps = dir.join("maps");
        reuse::verify(&maps, &options.bpf_dir)?;
        replaced.iter().try_for_each(|replaced| replaced.copy(&maps, Newer::Ours))?;
        let is_resumed = replaced.iter().any(reuse::Replaced::is_resumed);
        let is_begun = !links::is_empty(&dir.join("links"));
        if let Some(previous) = &previous {
            info!("another version's data path serves until this one is programmed");
            previous.copy(&maps, !is_begun, Newer::Ours)?;
        }
        Ok(Self {
            programs,
            dir,
            attached: BTreeMap::new(),
            accelerated: BTreeSet::new(),
            cgroup: None,
            insisted: watchdog::Insisted::new(),
            replaced,
            is_resumed: is_resumed || is_begun && previous.is_some(),
            previous,
            since,
            _lock: lock,
        })
    }

    /// Since when no other agent can have written here.
    pub const fn since(&self) -> Instant {
        self.since
    }

    /// What the programs log, once; nothing when they are silent.
    pub const fn take_packet_log(&mut self) -> Option<Records> {
        self.programs.take_packet_log()
    }

    /// Whether another layout serves: attach nothing before everything is programmed.
    pub const fn is_beside(&self) -> bool {
        self.previous.is_some()
    }

    /// Handles to the maps.
    pub fn maps(&self) -> Result<Maps, Error> {
        Ok(Maps::open(&self.dir.join("maps"))?)
    }

    /// Puts the programs of a role on a device, in place of what an earlier run left there.
    pub fn attach(&mut self, index: u32, name: &str, role: Role) -> Result<(), Error> {
        if let Some((known, is)) = self.attached.get_mut(&index)
            && *is == role
        {
            name.clone_into(known);
            return Ok(());
        }
        let links = self.dir.join("links");
        // Answers first: nobody is asked before his answer is known.
        for direction in [Direction::Egress, Direction::Ingress] {
            self.take_over(&links::pin_of(&links, index, direction))?;
            let place = Place::at_device(role, direction, self.hands_over());
            let program = self.programs.classifier(role.program(direction))?;
            links::attach_device(&links, program, (index, name), direction, place)
                .map_err(|error| error.named(role.program(direction)))?;
        }
        drop(self.attached.insert(index, (name.to_owned(), role)));
        info!(device = name, index, role = role.name(), "programs attached");
        Ok(())
    }

    /// Puts the XDP program on a device too, which is loaded when the first one asks for it; else says why not. One
    /// that an earlier run left there does not stay without its successor: it may go by maps that are no more.
    pub fn accelerate(&mut self, index: u32) -> Result<(), String> {
        let links = self.dir.join("links");
        let attached = match self.programs.xdp() {
            Ok(program) => xdp::attach(&links, program, index),
            Err(error) => {
                let why = crate::chain(&error);
                xdp::detach(&links, index).map_err(|error| crate::chain(&error))?;
                Err(why)
            }
        };
        let _: bool = match attached {
            Ok(()) => self.accelerated.insert(index),
            Err(_) => self.accelerated.remove(&index),
        };
        attached
    }

    /// Whether XDP programs may send by a device that has ours; else why not.
    pub fn takes_frames(&self, index: u32) -> Result<(), String> {
        if !self.accelerated.contains(&index) {
            return Err("it has no XDP program of ours".to_owned());
        }
        match features::takes_frames(index) {
            Ok(true) => Ok(()),
            Ok(false) => Err(features::NO_FRAMES.to_owned()),
            Err(error) => Err(format!("its driver's features are not known: {error}")),
        }
    }

    /// Takes the XDP program off a device.
    pub fn decelerate(&mut self, index: u32) -> Result<(), Error> {
        let _: bool = self.accelerated.remove(&index);
        xdp::detach(&self.dir.join("links"), index)
    }

    /// Takes the programs off a device, or forgets one that is gone.
    pub fn detach(&mut self, index: u32) -> Result<(), Error> {
        drop(self.attached.remove(&index));
        let _: bool = self.accelerated.remove(&index);
        links::detach_device(&self.dir.join("links"), index)
    }

    /// Takes the programs off every device but these: what an earlier run left.
    pub fn retain(&mut self, devices: &BTreeSet<u32>) -> Result<(), Error> {
        for index in links::devices(&self.dir.join("links"))? {
            if !devices.contains(&index) {
                self.detach(index)?;
                info!(index, "programs detached");
            }
        }
        Ok(())
    }

    /// Puts the socket hooks on the cgroup.
    pub fn attach_sockets(&mut self, cgroup: &Path) -> Result<(), Error> {
        let folder = File::open(cgroup).map_err(|source| Error::Folder {
            path: cgroup.to_owned(),
            what: "the cgroup cannot be opened".into(),
            source,
        })?;
        let links = self.dir.join("links");
        // Answers first, as at devices.
        for name in SOCKET_HOOKS.into_iter().rev() {
            self.take_over(&links.join(name))?;
            let place = Place::at_hook(name, self.hands_over());
            let program = self.programs.socket(name)?;
            links::attach_cgroup(&links, program, name, &folder, place)
                .map_err(|error| error.named(name))?;
        }
        self.cgroup = Some(folder);
        Ok(())
    }

    /// Carries over what packets wrote since the maps were made: right before programs are replaced, so that little
    /// is missing between that and [`Datapath::settle`].
    pub fn carry(&self) -> Result<(), Error> {
        let maps = self.dir.join("maps");
        let is_before = self.attached.is_empty() && !self.is_resumed;
        let newer = if is_before { Newer::Theirs } else { Newer::Ours };
        self.replaced.iter().try_for_each(|replaced| replaced.copy(&maps, newer))?;
        self.previous.as_ref().map_or(Ok(()), |previous| previous.copy(&maps, false, newer))
    }

    /// Whether ours and an earlier run's programs do not write the same maps.
    fn hands_over(&self) -> bool {
        self.previous.is_some() || self.replaced.iter().any(reuse::Replaced::is_memory)
    }

    /// To be called when every question meets our programs: moves over what went into the maps of an earlier run
    /// meanwhile, then takes its programs off.
    pub fn settle(&mut self) -> Result<(), Error> {
        let (maps, links) = (self.dir.join("maps"), self.dir.join("links"));
        if self.hands_over() {
            crate::syscall::wait_for_programs();
        }
        let mut over = Vec::new();
        for replaced in self.replaced.drain(..) {
            if let Err(error) = replaced.copy(&maps, Newer::Ours) {
                warn!(map = replaced.name(), %error, "some late entries were not copied");
            }
            over.push(replaced);
        }
        let previous = self.previous.take();
        if let Some(previous) = &previous
            && let Err(error) = previous.copy(&maps, false, Newer::Ours)
        {
            warn!(error = crate::chain(&error), "some late entries were not carried over");
        }
        // Their programs first: they answer from these maps.
        handover::forget(&links)?;
        over.into_iter().try_for_each(reuse::Replaced::forget)?;
        previous.map_or(Ok(()), Previous::forget)?;
        self.programs.forget_others()
    }

    fn take_over(&self, path: &Path) -> Result<(), Error> {
        let Some(previous) = &self.previous else { return Ok(()) };
        let taken = previous.take_over(path);
        taken.map_err(|source| Error::Pin { path: path.to_owned(), source })
    }
}

fn sizes(options: &Options) -> Result<BTreeMap<&'static str, u32>, Error> {
    let mut sizes: BTreeMap<&'static str, u32> =
        SHAPES.iter().map(|shape| (shape.name, shape.entries)).collect();
    for (name, entries) in &options.sizes {
        let shape = maps::Shape::of(name).filter(|shape| shape.is_sizable);
        let shape = shape.ok_or_else(|| Error::UnknownMap(name.clone()))?;
        let _: Option<u32> = sizes.insert(shape.name, *entries);
    }
    Ok(sizes)
}
