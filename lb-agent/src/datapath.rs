//! The eBPF programs of this node: loads them over the pinned maps, attaches them, and replaces those of an earlier
//! run.
//!
//! Everything is pinned below `<bpf-dir>/<layout>`: `maps`, `programs`, and `links`, named by interface index or socket
//! hook. Pinned links serve packets whether or not an agent runs.

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

pub use crate::syscall::AttachedProgram;
pub use attached::{
    attached_hooks, attached_programs, attached_socket_programs, is_accelerated, is_attached,
    is_hook_attached,
};
pub use check::{Requirement, capabilities, find_cgroup2, missing_cgroup2, requirements};
pub use cleanup::{Removed, cleanup};
pub use elsewhere::{other_data_path, refuse as refuse_others};
pub use error::Error;
use lock::Lock;
pub use lock::{ensure_no_agent, runs, without_agent};
pub use look::Fault;
pub use names::{CLASSIFIERS, LAYOUT, PATHS, SOCKET_HOOKS, XDP_PATHS};
pub use newcomer::Newcomer;
pub use open::{OpenError, is_here, open, open_here};
pub use packet_log::{PacketLog, Records};
pub use pins::{maps_directory, pinned_programs};
use programs::Programs;
pub use programs::{connect_paths, connect_xdp_paths, object};
pub use role::{Direction, InterfaceRole};
use upgrade::{Previous, Replaced};
pub use upgrade::{is_of_another_build, pinned_sizes};
pub use watchdog::Inspection;
pub use xdp::OCCUPIED;

/// Paths and sizes of the data path.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory for the pins; a bpffs is mounted there if it is not on one.
    pub bpf_dir: PathBuf,
    /// Cgroup v2 whose sockets the socket hooks serve.
    pub cgroup: PathBuf,
    /// Entries of maps that do not have their default size, by name.
    pub sizes: BTreeMap<String, u32>,
    /// Which packets the programs log.
    pub packet_log: PacketLog,
}

/// The loaded programs and the pins of one node. Dropping the value leaves everything attached.
#[derive(Debug)]
pub struct Datapath {
    programs: Programs,
    dir: PathBuf,
    /// Interfaces with programs, by index: name and role.
    attached: BTreeMap<u32, (String, InterfaceRole)>,
    /// Links that this run made or took over, by pin. An open descriptor keeps the link alive if its pin is removed.
    held: BTreeMap<PathBuf, OwnedFd>,
    /// Indices of the interfaces with the XDP program.
    accelerated: BTreeSet<u32>,
    /// Directory of the cgroup whose sockets are served, by its path and open.
    cgroup: Option<(PathBuf, File)>,
    displaced: displaced::Displaced,
    /// Maps of another size that new ones replaced; kept until no program uses them.
    replaced: Vec<Replaced>,
    /// The data path of another layout, which serves until our maps are filled.
    previous: Option<Previous>,
    lock: Lock,
}

/// Ensures that the directory for the pins is on a bpffs. Returns whether one was mounted.
pub fn mount(bpf_dir: &Path) -> Result<bool, Error> {
    // A missing directory counts by its parent: creating it needs no mount.
    let was = bpffs::is_bpffs(bpf_dir)
        || bpf_dir.parent().is_some_and(|parent| !bpf_dir.exists() && bpffs::is_bpffs(parent));
    bpffs::prepare(bpf_dir)?;
    Ok(!was)
}

impl Datapath {
    /// Takes the lock of the directory and loads the programs over its maps, or over new ones. Attaches nothing yet.
    pub fn load(options: &Options) -> Result<Self, Error> {
        if object().is_empty() {
            return Err(Error::NoObject);
        }
        if let Some(missing) = requirements(&options.cgroup).into_iter().next() {
            return Err(Error::Requirement(missing));
        }
        let sizes = sizes(options);
        bpffs::prepare(&options.bpf_dir)?;
        // Everything below reads or changes pins, which an agent that is ending, or a cleanup, may still change.
        let lock = Lock::take(&options.bpf_dir)?;
        // Two data paths at one hook would both translate; the lock only protects this directory.
        elsewhere::refuse(&options.bpf_dir, &options.cgroup)?;
        // From here on only this process writes. The last write of the previous run may have freed a row that a packet
        // is still reading: wait one grace period.
        crate::syscall::wait_for_programs();
        // Another build may have left a layout under our name: it gets another name before `Previous::find` looks for
        // the layouts that serve.
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
        // Counters are removed before `prepare` and before the programs are loaded: both take any map that is pinned
        // under the right name.
        upgrade::forget_counters(&dir)?;
        upgrade::record(&dir)?;
        let replaced = upgrade::prepare(&dir.join("maps"), &options.bpf_dir, &sizes)?;
        if let Some(previous) = &previous {
            // The pins must be there before the programs are loaded: loading creates each map that has none.
            previous.share(&dir.join("maps"), &sizes)?;
        }
        let is_begun = !pins::is_empty(&dir.join("links"));
        // An interrupted upgrade is resumed: links of this layout have links of an earlier layout beside them.
        let is_resumed = is_begun && previous.is_some();
        // An earlier run was interrupted while it moved a link: the link beside it may run a program that would be
        // found now, and an interface does not take a program twice.
        let is_halfway = upgrade::is_under_way(&dir.join("links"))?;
        let is_memory = replaced.iter().any(Replaced::is_memory);
        let must_load = is_resumed || is_memory || is_halfway;
        let mut programs = Programs::prepare(&dir, &sizes, options.packet_log, must_load)?;
        // Where XDP is in use its program is verified now. Otherwise that happens between the switch at tc and that at
        // XDP, when programs of two builds handle one packet. A failure is reported when it is attached.
        if upgrade::has_xdp(&dir, previous.as_ref()) {
            drop(programs.get(names::XDP));
        }
        let maps = dir.join("maps");
        upgrade::verify(&maps, &options.bpf_dir)?;
        // The maps are filled before any program of this run is attached, so no packet misses its flow.
        replaced.iter().try_for_each(|replaced| replaced.copy(&maps))?;
        if let Some(previous) = &previous {
            info!("data path of another layout stays active until the maps are filled");
            // Services are copied once: with links of ours, an interrupted run has copied them, and has written changes
            // since.
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

    /// Returns the packet log of the programs, once; `None` if they do not log.
    pub const fn take_packet_log(&mut self) -> Option<Records> {
        self.programs.take_packet_log()
    }

    /// Reports whether another layout serves. Nothing may be attached then before everything is programmed.
    pub const fn is_upgrading(&self) -> bool {
        self.previous.is_some()
    }

    /// Returns handles to the maps.
    pub fn maps(&self) -> Result<Maps, Error> {
        Ok(Maps::open(&self.dir.join("maps"))?)
    }
}

fn sizes(options: &Options) -> BTreeMap<&'static str, u32> {
    let mut sizes: BTreeMap<&'static str, u32> =
        SHAPES.iter().map(|shape| (shape.name, shape.entries)).collect();
    for (name, entries) in &options.sizes {
        sizes.extend(maps::MapShape::sized_by(name).map(|shape| (shape.name, *entries)));
    }
    sizes
}
