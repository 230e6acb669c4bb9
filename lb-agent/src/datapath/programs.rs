//! The loaded programs, pinned as `programs/<object>/<name>`. `<object>` distinguishes builds.
//!
//! An agent that restarts with the same object over the same maps finds its programs already verified, so it starts in
//! milliseconds, even on a busy machine.

mod load;
mod maps;
mod object;
mod paths;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use tracing::{debug, info};

use self::load::{LoadOptions, is_usable, load, load_and_pin, load_apart, names};
pub(super) use self::maps::MapPins;
pub use self::object::object;
pub use self::paths::{connect_paths, connect_xdp_paths};
use super::error::{Error, pin};
use super::names::{L3, XDP};
use super::packet_log::{PacketLog, Records};
use super::pins::{list, remove, remove_pin};
use crate::syscall;

/// A program that the verifier accepted.
#[derive(Debug)]
pub(super) struct Loaded {
    fd: OwnedFd,
    /// The id that the kernel gave it.
    pub(super) id: u32,
}

impl Loaded {
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let id = syscall::program_id(fd.as_fd())?;
        Ok(Self { fd, id })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Handles to the programs that the agent attaches.
#[derive(Debug)]
pub(super) struct Programs {
    directory: PathBuf,
    loaded: BTreeMap<&'static str, Loaded>,
    /// Second copies of programs, for interfaces that already have the first one. They are pinned only by their links.
    again: BTreeMap<&'static str, Loaded>,
    /// A program that does nothing. A link runs it before and after one of ours.
    idle: Option<OwnedFd>,
    records: Option<Records>,
    /// Handles to the maps, kept for a later load of the object.
    maps: MapPins,
    sizes: BTreeMap<&'static str, u32>,
    packet_log: PacketLog,
}

impl Programs {
    /// Finds the pinned programs of this object over these maps, or loads them.
    ///
    /// Programs with a packet log are always loaded: their ring buffer is not pinned. So are programs that are attached
    /// beside others (`must_load`): an interface refuses a program twice, and a pinned one may be attached there.
    pub(super) fn prepare(
        dir: &Path,
        sizes: &BTreeMap<&'static str, u32>,
        packet_log: PacketLog,
        must_load: bool,
    ) -> Result<Self, Error> {
        let (maps, mut name) = (dir.join("maps"), name_of(object()));
        let mut records = None;
        if packet_log != PacketLog::Off {
            // Programs that log are pinned apart, so that a run without the log does not take them for its own.
            name = format!("{name}-log{}", packet_log.level());
        }
        let directory = dir.join("programs").join(name);
        if packet_log == PacketLog::Off && !must_load && is_usable(&directory, &maps) {
            debug!(directory = %directory.display(), "programs already loaded");
        } else {
            let began = Instant::now();
            fs::create_dir_all(&directory).map_err(pin(&directory))?;
            // Programs of an earlier load may still be attached, and their array of tail calls must keep a pin.
            paths::set_aside(&directory)?;
            // The pinned programs may use maps that no longer exist. All pins go first, so that an interrupted load
            // leaves no mixture of two loads.
            names()
                .chain(L3)
                .chain([XDP])
                .try_for_each(|name| remove_pin(&directory.join(name)))?;
            let options = LoadOptions { maps: &maps, programs: &directory, sizes, packet_log };
            let mut ebpf = load(&options)?;
            records = (packet_log != PacketLog::Off).then(|| Records::of(&mut ebpf)).flatten();
            info!(took = ?began.elapsed(), "programs loaded");
        }
        let loaded = names().map(|name| Ok((name, open(&directory.join(name))?)));
        Ok(Self {
            loaded: loaded.collect::<Result<_, Error>>()?,
            again: BTreeMap::new(),
            idle: None,
            records,
            maps: MapPins::open(&maps, &directory)?,
            sizes: sizes.clone(),
            packet_log,
            directory,
        })
    }

    /// Returns the packet log of the programs, once.
    pub(super) const fn take_packet_log(&mut self) -> Option<Records> {
        self.records.take()
    }

    /// Returns a program. The XDP program and those for L3 interfaces are loaded at their first use.
    pub(super) fn get(&mut self, name: &'static str) -> Result<&Loaded, Error> {
        if !self.loaded.contains_key(name) {
            let path = self.directory.join(name);
            if !path.exists() {
                fs::create_dir_all(&self.directory).map_err(pin(&self.directory))?;
                // The loader finds maps by their pins; without them it would create new ones.
                self.maps.restore()?;
                load_and_pin(&self.options(), name)?;
            }
            drop(self.loaded.insert(name, open(&path)?));
        }
        self.loaded.get(name).ok_or(Error::NoObject)
    }

    /// Returns a program that is not among `taken`: the one that [`Programs::get`] returns, or a second copy. The copy
    /// logs to a ring buffer of its own, which is not read.
    pub(super) fn other_than(
        &mut self,
        name: &'static str,
        taken: &[u32],
    ) -> Result<&Loaded, Error> {
        // An interface refuses a program that is attached there already, for example in the link that it is to replace.
        if !taken.contains(&self.get(name)?.id) {
            return self.get(name);
        }
        if !self.again.contains_key(name) {
            // The loader finds maps by their pins; without them it would create new ones.
            self.maps.restore()?;
            let program = load_apart(&self.options(), name)?;
            let program = Loaded::new(program).map_err(pin(&self.directory.join(name)))?;
            drop(self.again.insert(name, program));
        }
        self.again.get(name).ok_or(Error::NoObject)
    }

    fn options(&self) -> LoadOptions<'_> {
        LoadOptions {
            maps: self.maps.directory(),
            programs: &self.directory,
            sizes: &self.sizes,
            packet_log: self.packet_log,
        }
    }

    /// Returns a program that does nothing, for a link before and after it runs ours.
    pub(super) fn idle(&mut self) -> io::Result<BorrowedFd<'_>> {
        let idle = match self.idle.take() {
            Some(idle) => idle,
            None => syscall::load_idle()?,
        };
        let idle: &OwnedFd = self.idle.insert(idle);
        Ok(idle.as_fd())
    }

    /// Reports whether a program id belongs to our program of this name.
    pub(super) fn is(&mut self, name: &'static str, id: u32) -> Result<bool, Error> {
        let again = self.again.get(name).map(|again| again.id);
        Ok(self.get(name)?.id == id || again == Some(id))
    }

    /// Restores removed pins of maps and programs. Returns how many were missing.
    pub(super) fn restore(&self) -> Result<usize, Error> {
        let mut restored = self.maps.restore()?;
        for (name, program) in &self.loaded {
            let path = self.directory.join(name);
            if !path.exists() {
                fs::create_dir_all(&self.directory).map_err(pin(&self.directory))?;
                syscall::pin(program.fd(), &path).map_err(pin(&path))?;
                restored += 1;
            }
        }
        Ok(restored)
    }

    /// Removes the pins of other builds and earlier loads. Call it when no link uses their programs.
    pub(super) fn forget_others(&self) -> Result<(), Error> {
        paths::forget_aside(&self.directory)?;
        let Some(parent) = self.directory.parent() else { return Ok(()) };
        for directory in list(parent)? {
            if directory != self.directory {
                remove(&directory, &mut Vec::new())?;
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<Loaded, Error> {
    syscall::open_pin(path).and_then(Loaded::new).map_err(pin(path))
}

/// Returns a name for an object: FNV-1a of its bytes. A version would contain dots, which a bpffs refuses.
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
