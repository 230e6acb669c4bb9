//! The loaded programs, always by their pins: `programs/<object>/<name>`, where `<object>` tells the builds apart.
//!
//! An agent that comes back with the same object over the same maps finds its programs verified
//! already: it is there in milliseconds, on a busy machine too.

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

use self::load::{Sources, is_usable, load, load_and_pin, load_apart, names};
pub(super) use self::maps::MapPins;
pub use self::object::object;
pub use self::paths::connect_paths;
use super::error::{Error, pin};
use super::names::{L3, XDP};
use super::packet_log::{PacketLog, Records};
use super::pins::{list, remove, remove_pin};
use crate::syscall;

/// A program that the verifier accepted.
#[derive(Debug)]
pub(super) struct Loaded {
    fd: OwnedFd,
    /// As the kernel numbers it.
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

/// Handles to the programs we attach.
#[derive(Debug)]
pub(super) struct Programs {
    directory: PathBuf,
    loaded: BTreeMap<&'static str, Loaded>,
    /// The same programs once more, for a place that takes no program twice. They have no pin but their links'.
    again: BTreeMap<&'static str, Loaded>,
    /// A program that does nothing, for the moments before and after one of ours runs in a link.
    idle: Option<OwnedFd>,
    records: Option<Records>,
    /// How the object is loaded again.
    maps: MapPins,
    sizes: BTreeMap<&'static str, u32>,
    packet_log: PacketLog,
}

impl Programs {
    /// Finds the programs of our object over these maps, or loads them.
    ///
    /// Programs that log are always loaded anew: their ring buffer is not pinned. So are those that go beside what is
    /// attached (`must_load`): a device takes no program twice, and what is attached may be what is found.
    pub(super) fn prepare(
        dir: &Path,
        sizes: &BTreeMap<&'static str, u32>,
        packet_log: PacketLog,
        must_load: bool,
    ) -> Result<Self, Error> {
        let (maps, mut name) = (dir.join("maps"), name_of(object()));
        let mut records = None;
        if packet_log != PacketLog::Off {
            name = format!("{name}-log{}", packet_log.level());
        }
        let directory = dir.join("programs").join(name);
        if packet_log == PacketLog::Off && !must_load && is_usable(&directory, &maps) {
            debug!(directory = %directory.display(), "programs already loaded");
        } else {
            let began = Instant::now();
            fs::create_dir_all(&directory).map_err(pin(&directory))?;
            paths::set_aside(&directory)?;
            // They may use maps that are no more. None stays, so that an end halfway leaves no mixture of two runs.
            names()
                .chain(L3)
                .chain([XDP])
                .try_for_each(|name| remove_pin(&directory.join(name)))?;
            let sources = Sources { maps: &maps, programs: &directory, sizes, packet_log };
            let mut ebpf = load(&sources)?;
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

    /// The packet log of the programs, once.
    pub(super) const fn take_packet_log(&mut self) -> Option<Records> {
        self.records.take()
    }

    /// A program. The XDP program and those of L3 devices are loaded when they are asked for the first time.
    pub(super) fn get(&mut self, name: &'static str) -> Result<&Loaded, Error> {
        if !self.loaded.contains_key(name) {
            let path = self.directory.join(name);
            if !path.exists() {
                fs::create_dir_all(&self.directory).map_err(pin(&self.directory))?;
                self.maps.restore()?;
                load_and_pin(&self.sources(), name)?;
            }
            drop(self.loaded.insert(name, open(&path)?));
        }
        self.loaded.get(name).ok_or(Error::NoObject)
    }

    /// A program that is none of `taken`: the one that [`Programs::get`] gives, or the same once more. The log of
    /// the latter goes to a ring of its own, which nobody reads.
    pub(super) fn other_than(
        &mut self,
        name: &'static str,
        taken: &[u32],
    ) -> Result<&Loaded, Error> {
        if !taken.contains(&self.get(name)?.id) {
            return self.get(name);
        }
        if !self.again.contains_key(name) {
            self.maps.restore()?;
            let program = load_apart(&self.sources(), name)?;
            let program = Loaded::new(program).map_err(pin(&self.directory.join(name)))?;
            drop(self.again.insert(name, program));
        }
        self.again.get(name).ok_or(Error::NoObject)
    }

    fn sources(&self) -> Sources<'_> {
        Sources {
            maps: self.maps.directory(),
            programs: &self.directory,
            sizes: &self.sizes,
            packet_log: self.packet_log,
        }
    }

    /// A program that does nothing, for a link before and after it has ours.
    pub(super) fn idle(&mut self) -> io::Result<BorrowedFd<'_>> {
        let idle = match self.idle.take() {
            Some(idle) => idle,
            None => syscall::load_idle()?,
        };
        let idle: &OwnedFd = self.idle.insert(idle);
        Ok(idle.as_fd())
    }

    /// Whether a program of this number is one of ours of this name.
    pub(super) fn is(&mut self, name: &'static str, id: u32) -> Result<bool, Error> {
        let again = self.again.get(name).map(|again| again.id);
        Ok(self.get(name)?.id == id || again == Some(id))
    }

    /// Gives pins that somebody removed back to maps and programs, and says how many.
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

    /// Removes the pins of other builds and loads; to be called when no link uses their programs.
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
