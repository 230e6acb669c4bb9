//! The loaded programs, always by their pins: `programs/<object>/<name>`, where `<object>` tells the builds apart.
//!
//! An agent that comes back with the same object over the same maps finds its programs verified
//! already: it is there in milliseconds, on a busy machine too.

mod hooks;
mod load;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use aya::programs::{CgroupSockAddr, SchedClassifier, Xdp};
use tracing::{debug, info};

pub(super) use self::hooks::attach_type;
use self::hooks::hook;
use self::load::{is_usable, load, load_program, names, object_over, pin_program};
use super::links::remove_pin;
use super::packet_log::{PacketLog, Records};
use super::{BARE, CLASSIFIERS, Error, SOCKET_HOOKS, cleanup, object};
use crate::syscall;

/// The XDP program: loaded for those who attach it.
const XDP: &str = "edge_xdp";

/// Handles to the programs we attach.
#[derive(Debug)]
pub(super) struct Programs {
    folder: PathBuf,
    classifiers: BTreeMap<&'static str, SchedClassifier>,
    sockets: BTreeMap<&'static str, CgroupSockAddr>,
    xdp: Option<OwnedFd>,
    records: Option<Records>,
    /// How the object is loaded again, for the XDP program and those of bare devices.
    maps: PathBuf,
    sizes: BTreeMap<&'static str, u32>,
    packet_log: PacketLog,
}

impl Programs {
    /// Finds the programs of our object over these maps, or loads them.
    ///
    /// Programs that log are always loaded anew: their ring buffer is not pinned. So are those that go beside what is
    /// attached (`is_beside`): a device takes no program twice, and what is attached may be what is found.
    pub(super) fn prepare(
        dir: &Path,
        sizes: &BTreeMap<&'static str, u32>,
        packet_log: PacketLog,
        is_beside: bool,
    ) -> Result<Self, Error> {
        let (maps, mut name) = (dir.join("maps"), name_of(object()));
        let mut records = None;
        if packet_log != PacketLog::Off {
            name = format!("{name}-log{}", packet_log.level());
        }
        let folder = dir.join("programs").join(name);
        if packet_log == PacketLog::Off && !is_beside && is_usable(&folder, &maps) {
            debug!(folder = %folder.display(), "programs are there already");
        } else {
            let began = Instant::now();
            fs::create_dir_all(&folder).map_err(pin(&folder))?;
            // They may use maps that are no more. None stays, so that an end halfway leaves no mixture of two runs.
            names().chain(BARE).chain([XDP]).try_for_each(|name| remove_pin(&folder.join(name)))?;
            let mut ebpf = load(&maps, &folder, sizes, packet_log)?;
            records = (packet_log != PacketLog::Off).then(|| Records::of(&mut ebpf)).flatten();
            info!(took = ?began.elapsed(), "programs loaded");
        }
        let mut programs = Self::open(folder, records, maps)?;
        programs.sizes.clone_from(sizes);
        programs.packet_log = packet_log;
        Ok(programs)
    }

    /// The XDP program, loaded when it is asked for the first time.
    pub(super) fn xdp(&mut self) -> Result<BorrowedFd<'_>, Error> {
        let path = self.folder.join(XDP);
        if self.xdp.is_none() && !path.exists() {
            let mut ebpf = object_over(&self.maps, &self.sizes, self.packet_log)?;
            load_program(&mut ebpf, XDP, Xdp::load)?;
            pin_program(&mut ebpf, XDP, &self.folder)?;
        }
        let program = match self.xdp.take() {
            Some(program) => program,
            None => syscall::open_pin(&path).map_err(pin(&path))?,
        };
        let program: &OwnedFd = self.xdp.insert(program);
        if !path.exists() {
            // Only a later run would miss it.
            let pinned = fs::create_dir_all(&self.folder)
                .and_then(|()| syscall::pin(program.as_fd(), &path));
            match pinned {
                Ok(()) => info!(path = %path.display(), "a pin that somebody removed is back"),
                Err(error) => debug!(path = %path.display(), %error, "the XDP program has no pin"),
            }
        }
        Ok(program.as_fd())
    }

    /// Number of the XDP program.
    pub(super) fn xdp_id(&mut self) -> Result<u32, Error> {
        let id = syscall::program_id(self.xdp()?);
        id.map_err(|source| Error::Pin { path: self.folder.join(XDP), source })
    }

    /// What the programs log, once.
    pub(super) const fn take_packet_log(&mut self) -> Option<Records> {
        self.records.take()
    }

    /// A tc program; one of a bare device is loaded when it is asked for the first time.
    pub(super) fn classifier(&mut self, name: &'static str) -> Result<&mut SchedClassifier, Error> {
        match self.classifiers.entry(name) {
            Entry::Occupied(found) => Ok(found.into_mut()),
            Entry::Vacant(place) => {
                if !self.folder.join(name).exists() {
                    fs::create_dir_all(&self.folder).map_err(pin(&self.folder))?;
                    let mut ebpf = object_over(&self.maps, &self.sizes, self.packet_log)?;
                    load_program(&mut ebpf, name, SchedClassifier::load)?;
                    pin_program(&mut ebpf, name, &self.folder)?;
                }
                Ok(place.insert(classifier(&self.folder, name)?))
            }
        }
    }

    /// A socket hook.
    pub(super) fn socket(&mut self, name: &'static str) -> Result<&mut CgroupSockAddr, Error> {
        self.sockets.get_mut(name).ok_or(Error::NoObject)
    }

    /// Removes the pins of other builds; to be called when no link uses their programs.
    pub(super) fn forget_others(&self) -> Result<(), Error> {
        let Some(parent) = self.folder.parent() else { return Ok(()) };
        for folder in cleanup::list(parent)? {
            if folder != self.folder {
                cleanup::remove(&folder, &mut Vec::new())?;
            }
        }
        Ok(())
    }

    fn open(folder: PathBuf, records: Option<Records>, maps: PathBuf) -> Result<Self, Error> {
        let classifier = |name: &'static str| Ok((name, classifier(&folder, name)?));
        let socket = |name: &'static str| {
            let program = CgroupSockAddr::from_pin(folder.join(name), hook(name));
            Ok((name, program.map_err(|source| Error::Program { name, source })?))
        };
        Ok(Self {
            classifiers: CLASSIFIERS.into_iter().map(classifier).collect::<Result<_, Error>>()?,
            sockets: SOCKET_HOOKS.into_iter().map(socket).collect::<Result<_, Error>>()?,
            xdp: None,
            folder,
            records,
            maps,
            sizes: BTreeMap::new(),
            packet_log: PacketLog::Off,
        })
    }
}

fn classifier(folder: &Path, name: &'static str) -> Result<SchedClassifier, Error> {
    let program = SchedClassifier::from_pin(folder.join(name));
    program.map_err(|source| Error::Program { name, source })
}

fn pin(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    |source| Error::Pin { path: path.to_owned(), source }
}

/// A name for an object: FNV-1a of its bytes. A bpffs takes no dots, so no version.
fn name_of(object: &[u8]) -> String {
    let hash = object.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_names_of_their_own() {
        assert_eq!(name_of(b""), "cbf29ce484222325");
        assert_ne!(name_of(b"a"), name_of(b"b"));
    }
}
