//! The programs in the kernel: loads them over the pinned maps, attaches them, replaces those of an earlier run.
//!
//! Everything lies below `<bpf-dir>/<layout>`: `maps`, `programs`, and `links` by interface index or
//! socket hook. Links are pinned, so packets are served whether an agent runs or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use tracing::info;

use crate::maps::{self, Maps, SHAPES};

mod attach;
mod attached;
mod bpffs;
mod check;
mod cleanup;
mod detach;
mod displaced;
mod elsewhere;
mod error;
mod features;
mod links;
mod lock;
mod look;
mod names;
mod newcomer;
mod open;
mod packet_log;
mod pins;
mod programs;
mod release;
mod restore;
mod role;
mod upgrade;
mod watchdog;
mod xdp;

pub use crate::syscall::Hooked;
pub use attached::{
    attached_hooks, attached_programs, attached_socket_programs, is_accelerated, is_attached,
};
pub use check::{Requirement, capabilities, find_cgroup2, requirements};
pub use cleanup::{Removed, cleanup};
pub use error::Error;
use lock::Lock;
pub use lock::{ensure_no_agent, runs};
pub use look::Fault;
pub use names::{CLASSIFIERS, LAYOUT, PATHS, SOCKET_HOOKS};
pub use newcomer::Newcomer;
pub use open::{OpenError, open};
pub use packet_log::{PacketLog, Records};
pub use pins::maps_directory;
use programs::Programs;
pub use programs::{connect_paths, object};
pub use role::{Direction, Role};
pub use upgrade::is_of_another_build;
use upgrade::{Previous, Replaced};
pub use watchdog::Findings;
pub use xdp::OCCUPIED;

/// Where things are.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory on a bpffs; mounted if it is none.
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
    /// By their pins, the links that this run made or took over. Held, they stay when somebody removes their pins.
    held: BTreeMap<PathBuf, OwnedFd>,
    /// By interface index: devices with the XDP program.
    accelerated: BTreeSet<u32>,
    /// The directory of the cgroup whose sockets are served.
    cgroup: Option<File>,
    displaced: displaced::Displaced,
    /// Maps that were replaced by ones of another size, until the programs let go of them.
    replaced: Vec<Replaced>,
    /// The data path that serves until everything is programmed.
    previous: Option<Previous>,
    lock: Lock,
}

/// Makes sure that the directory for pins lies on a bpffs, and says whether one had to be mounted.
pub fn mount(bpf_dir: &Path) -> Result<bool, Error> {
    let was = bpffs::is_bpffs(bpf_dir)
        || bpf_dir.parent().is_some_and(|parent| !bpf_dir.exists() && bpffs::is_bpffs(parent));
    bpffs::prepare(bpf_dir)?;
    Ok(!was)
}

impl Datapath {
    /// Takes the directory over, loads the programs over the maps there (or new ones), attaches nothing yet.
    pub fn load(options: &Options) -> Result<Self, Error> {
        if object().is_empty() {
            return Err(Error::NoObject);
        }
        if let Some(missing) = requirements(&options.cgroup).into_iter().next() {
            return Err(Error::Requirement(missing));
        }
        let sizes = sizes(options);
        bpffs::prepare(&options.bpf_dir)?;
        let lock = Lock::take(&options.bpf_dir)?;
        elsewhere::refuse(&options.bpf_dir, &options.cgroup)?;
        // From here on only this process writes. The last write of the previous run may have freed a row that a packet
        // is still reading: wait one grace period.
        crate::syscall::wait_for_programs();
        upgrade::set_aside(&options.bpf_dir)?;
        let previous = Previous::find(&options.bpf_dir)?;
        let dir = options.bpf_dir.join(LAYOUT);
        for directory in ["maps", "links", "programs"].map(|name| dir.join(name)) {
            std::fs::create_dir_all(&directory).map_err(|source| Error::Directory {
                path: directory.clone(),
                what: "cannot be created; choose another --bpf-dir".into(),
                source,
            })?;
        }
        upgrade::forget_counters(&dir)?;
        upgrade::note(&dir)?;
        let replaced = upgrade::prepare(&dir.join("maps"), &options.bpf_dir, &sizes)?;
        if let Some(previous) = &previous {
            previous.share(&dir.join("maps"), &sizes)?;
        }
        let is_begun = !pins::is_empty(&dir.join("links"));
        // A resumed run finds links of ours that another goes beside.
        let is_resumed = is_begun && previous.is_some();
        // An earlier run ended while it took its place back from others: its link beside may run what would be found.
        let is_halfway = upgrade::is_under_way(&dir.join("links"))?;
        let is_memory = replaced.iter().any(Replaced::is_memory);
        let must_load = is_resumed || is_memory || is_halfway;
        let programs = Programs::prepare(&dir, &sizes, options.packet_log, must_load)?;
        let maps = dir.join("maps");
        upgrade::verify(&maps, &options.bpf_dir)?;
        replaced.iter().try_for_each(|replaced| replaced.copy(&maps))?;
        if let Some(previous) = &previous {
            info!("the data path of another version stays active until this one is programmed");
            previous.copy(&maps, !is_begun)?;
        }
        Ok(Self {
            programs,
            dir,
            attached: BTreeMap::new(),
            held: BTreeMap::new(),
            accelerated: BTreeSet::new(),
            cgroup: None,
            displaced: displaced::Displaced::default(),
            replaced,
            previous,
            lock,
        })
    }

    /// The packet log of the programs, once; nothing when they are silent.
    pub const fn take_packet_log(&mut self) -> Option<Records> {
        self.programs.take_packet_log()
    }

    /// Whether another layout serves: attach nothing before everything is programmed.
    pub const fn is_upgrading(&self) -> bool {
        self.previous.is_some()
    }

    /// Handles to the maps.
    pub fn maps(&self) -> Result<Maps, Error> {
        Ok(Maps::open(&self.dir.join("maps"))?)
    }
}

fn sizes(options: &Options) -> BTreeMap<&'static str, u32> {
    let mut sizes: BTreeMap<&'static str, u32> =
        SHAPES.iter().map(|shape| (shape.name, shape.entries)).collect();
    for (name, entries) in &options.sizes {
        sizes.extend(maps::Shape::sized_by(name).map(|shape| (shape.name, *entries)));
    }
    sizes
}
