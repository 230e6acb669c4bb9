//! The programs in the kernel: loads them over the pinned maps, attaches them, replaces those of an earlier run.
//!
//! Everything lies below `<bpf-dir>/<layout>`: `maps`, `programs`, and `links` by interface index or
//! socket hook. Links are pinned, so packets are served whether an agent runs or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use tracing::info;

use crate::maps::{self, Maps, SHAPES};

mod attach;
mod beside;
mod bpffs;
mod check;
mod cleanup;
mod detach;
mod error;
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
mod settle;
mod watchdog;
mod xdp;

pub use crate::syscall::Hooked;
pub use beside::{beside, beside_sockets};
pub use check::{Requirement, capabilities, find_cgroup2, requirements};
pub use cleanup::{Removed, cleanup};
pub use error::Error;
pub use links::{Direction, Role};
use lock::Lock;
pub use meaning::is_of_another_build;
pub use packet_log::{PacketLog, Records};
use previous::Previous;
use programs::Programs;
pub use watchdog::{Fault, Findings};
pub use xdp::{OCCUPIED, is_accelerated};

/// Name of the layout of maps and pins. It moves with every change of a shared type that old programs cannot read.
pub const LAYOUT: &str = "v3";

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

/// Those of devices without a link-layer header.
const BARE: [&str; 2] = ["bare_ingress", "bare_egress"];

/// The compiled programs: the ELF object that `build.rs` made of `lb-ebpf`.
pub const fn object() -> &'static [u8] {
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/lb-ebpf"))
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
    /// Pins of links at devices that this run made or took over: they are nobody's to be left beside ours.
    placed: BTreeSet<PathBuf>,
    /// By interface index: devices with the XDP program.
    accelerated: BTreeSet<u32>,
    /// The folder of the cgroup whose sockets are served.
    cgroup: Option<File>,
    insisted: watchdog::Insisted,
    /// Maps that were replaced by ones of another size, until the programs let go of them.
    replaced: Vec<reuse::Replaced>,
    /// What serves until everything is programmed.
    previous: Option<Previous>,
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
        // From here on nobody else writes. What an earlier run wrote last may have given up what a packet still reads.
        crate::syscall::wait_for_programs();
        meaning::set_aside(&options.bpf_dir)?;
        let previous = Previous::find(&options.bpf_dir)?;
        let dir = options.bpf_dir.join(LAYOUT);
        for folder in ["maps", "links", "programs"].map(|name| dir.join(name)) {
            std::fs::create_dir_all(&folder).map_err(|source| Error::Folder {
                path: folder.clone(),
                what: "cannot be made; choose another --bpf-dir".into(),
                source,
            })?;
        }
        meaning::note(&dir)?;
        let replaced = reuse::prepare(&dir.join("maps"), &options.bpf_dir, &sizes)?;
        let is_begun = !links::is_empty(&dir.join("links"));
        // What is resumed finds links of ours that another goes beside.
        let is_resumed = is_begun && previous.is_some();
        let is_beside = is_resumed || replaced.iter().any(reuse::Replaced::is_memory);
        let programs = Programs::prepare(&dir, &sizes, options.packet_log, is_beside)?;
        let maps = dir.join("maps");
        reuse::verify(&maps, &options.bpf_dir)?;
        replaced.iter().try_for_each(|replaced| replaced.copy(&maps))?;
        if let Some(previous) = &previous {
            info!("another version's data path serves until this one is programmed");
            previous.copy(&maps, !is_begun)?;
        }
        Ok(Self {
            programs,
            dir,
            attached: BTreeMap::new(),
            placed: BTreeSet::new(),
            accelerated: BTreeSet::new(),
            cgroup: None,
            insisted: watchdog::Insisted::new(),
            replaced,
            previous,
            _lock: lock,
        })
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
}

fn sizes(options: &Options) -> Result<BTreeMap<&'static str, u32>, Error> {
    let mut sizes: BTreeMap<&'static str, u32> =
        SHAPES.iter().map(|shape| (shape.name, shape.entries)).collect();
    for (name, entries) in &options.sizes {
        let mut shapes = maps::Shape::sized_by(name).peekable();
        if shapes.peek().is_none() {
            return Err(Error::UnknownMap(name.clone()));
        }
        sizes.extend(shapes.map(|shape| (shape.name, *entries)));
    }
    Ok(sizes)
}
