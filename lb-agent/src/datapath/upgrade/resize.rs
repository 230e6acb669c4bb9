//! Maps of an earlier run: reused if their shape is right, copied if only their size differs, refused with an error
//! that names them otherwise.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use aya::maps::{MapData, MapError, MapInfo};
use tracing::{info, warn};

use crate::datapath::error::Error;
use crate::datapath::pins::{maps_directory, remove_pin};
use crate::maps::{MapShape, SHAPES, copy, describe};
use crate::syscall;

/// A map that a new one of another size replaces.
#[derive(Debug)]
pub(in crate::datapath) struct Replaced {
    shape: &'static MapShape,
    old: MapData,
    /// Pin of the old map until the new one has all entries.
    aside: PathBuf,
}

impl Replaced {
    pub(super) const fn name(&self) -> &'static str {
        self.shape.name
    }

    /// Reports whether packets write the map.
    pub(in crate::datapath) const fn is_memory(&self) -> bool {
        self.shape.content.may_shrink()
    }

    /// Copies the entries into the new map; called again, those that came since.
    pub(in crate::datapath) fn copy(&self, maps: &Path) -> Result<(), Error> {
        let path = maps.join(self.shape.name);
        let pin = |source| Error::Pin { path: path.clone(), source };
        let other = |error: MapError| pin(io::Error::other(error.to_string()));
        let new = MapData::from_pin(&path).map_err(other)?;
        copy(self.shape.name, &self.old, &new, transient(&path).as_ref()).map_err(pin)
    }

    /// Removes the pin of the old map. Programs that still use the map keep it alive.
    pub(super) fn forget(&self) -> Result<(), Error> {
        remove_pin(&self.aside)
    }
}

/// Returns the map of transient flows that belongs to a map of protected flows.
pub(super) fn transient(path: &Path) -> Option<MapData> {
    let family = path.file_name()?.to_str()?.strip_prefix("FLOWS")?;
    MapData::from_pin(path.with_file_name(format!("TRANSIENT{family}"))).ok()
}

/// Checks every pinned map, and renames the pins of those with another size, so that loading creates new ones.
pub(in crate::datapath) fn prepare(
    maps: &Path,
    dir: &Path,
    sizes: &BTreeMap<&'static str, u32>,
) -> Result<Vec<Replaced>, Error> {
    let mut replaced = Vec::new();
    for shape in &SHAPES {
        let path = maps.join(shape.name);
        let aside = maps.join(format!("{}-old", shape.name));
        let pin = |source| Error::Pin { path: path.clone(), source };
        let open = |path: &Path| {
            let map = MapData::from_pin(path);
            map.map_err(|error| pin(io::Error::other(error.to_string())))
        };
        let wanted = sizes.get(shape.name).copied().unwrap_or(shape.entries);
        // An earlier run was interrupted while it resized the map. If packets write the map, some programs use the old
        // one and some the new one: this run continues there. For a map that the agent writes, resizing starts again.
        if aside.exists() {
            if let Some(info) = pinned(&path, shape, dir)?.filter(|_| shape.content.may_shrink()) {
                let has = info.max_entries();
                if wanted != has {
                    warn!(map = shape.name, entries = has, "map is resized at the next start");
                }
                replaced.push(Replaced { shape, old: open(&aside)?, aside });
                continue;
            }
            fs::rename(&aside, &path).map_err(pin)?;
        }
        let Some(info) = pinned(&path, shape, dir)? else { continue };
        let has = info.max_entries();
        if wanted < has && !shape.content.may_shrink() {
            warn!(
                map = shape.name,
                entries = has,
                "map keeps its size: a pinned map of desired state never shrinks"
            );
        } else if wanted != has {
            let old = open(&path)?;
            fs::rename(&path, &aside).map_err(pin)?;
            info!(map = shape.name, from = has, to = wanted, "resizing map");
            replaced.push(Replaced { shape, old, aside });
        }
    }
    Ok(replaced)
}

/// Returns the sizes of the pinned maps of this layout, by name: of those whose size may change, and whose shape is
/// right.
pub fn pinned_sizes(bpf_dir: &Path) -> BTreeMap<&'static str, u32> {
    let maps = maps_directory(bpf_dir);
    let sizable = SHAPES.iter().filter(|shape| shape.content.is_sizable());
    // A map that cannot be read is left out here; loading reports it.
    let read = |shape: &'static MapShape| {
        let info = pinned(&maps.join(shape.name), shape, bpf_dir).ok()??;
        Some((shape.name, info.max_entries()))
    };
    sizable.filter_map(read).collect()
}

/// Checks after loading that every map has the expected shape: object and agent are of one build.
pub(in crate::datapath) fn verify(maps: &Path, dir: &Path) -> Result<(), Error> {
    SHAPES.iter().try_for_each(|shape| pinned(&maps.join(shape.name), shape, dir).map(|_| ()))
}

fn pinned(path: &Path, shape: &MapShape, dir: &Path) -> Result<Option<MapInfo>, Error> {
    if !path.exists() {
        return Ok(None);
    }
    let refuse = |found: String| Error::PinShape {
        path: path.to_owned(),
        found,
        wanted: shape.to_string(),
        dir: dir.to_owned(),
    };
    if let Some(other) = other_than_map(path) {
        return Err(refuse(other));
    }
    let info = MapInfo::from_pin(path).map_err(|error| refuse(format!("no map ({error})")))?;
    if shape.fits(&info) { Ok(Some(info)) } else { Err(refuse(describe(&info))) }
}

/// Returns the type of a pinned object that is not a map. A program or a link would also answer the request for its
/// shape, with other numbers.
fn other_than_map(path: &Path) -> Option<String> {
    let object = syscall::open_pin(path).ok()?;
    let kind = fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd())).ok()?;
    let kind = kind.to_str()?.strip_prefix("anon_inode:")?.replace('_', "-");
    (kind != "bpf-map").then(|| format!("a {kind}, not a map"))
}
