//! Maps of an earlier run: reused if they are what they should be, replaced with their content if
//! only their size is another, refused by name otherwise.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use aya::maps::{MapData, MapError, MapInfo};
use tracing::{info, warn};

use super::Error;
use super::links::remove_pin;
use crate::maps::{Newer, SHAPES, Shape, copy, describe};
use crate::syscall;

/// A map that another took the place of.
#[derive(Debug)]
pub(super) struct Replaced {
    shape: &'static Shape,
    old: MapData,
    /// Where the old map is pinned until the new one has everything; nowhere when it is what an end halfway left.
    aside: Option<PathBuf>,
}

impl Replaced {
    pub(super) const fn name(&self) -> &'static str {
        self.shape.name
    }

    /// Whether an earlier run ended in the middle of this, so that programs of both maps may be attached.
    pub(super) const fn is_resumed(&self) -> bool {
        self.aside.is_none()
    }

    /// Whether packets write it.
    pub(super) const fn is_memory(&self) -> bool {
        self.shape.may_shrink
    }

    /// Copies the content into the map that was made in its place, and what came after the first copy when
    /// called again.
    pub(super) fn copy(&self, maps: &Path, newer: Newer) -> Result<(), Error> {
        let path = maps.join(self.shape.name);
        let pin = |source| Error::Pin { path: path.clone(), source };
        let other = |error: MapError| pin(io::Error::other(error.to_string()));
        let new = MapData::from_pin(&path).map_err(other)?;
        copy(self.shape.name, &self.old, &new, newer).map_err(pin)
    }

    /// Ends the old map; programs that still use it keep it alive.
    pub(super) fn forget(&self) -> Result<(), Error> {
        self.aside.as_deref().map_or(Ok(()), remove_pin)
    }
}

/// Checks every pinned map, and puts those of another size aside, so that loading makes them anew.
pub(super) fn prepare(
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
        if aside.exists() {
            // An earlier run ended in the middle of this: some programs use the old map, and some the new one.
            if shape.may_shrink && pinned(&path, shape, dir)?.is_some() {
                replaced.push(Replaced { shape, old: open(&path)?, aside: None });
            }
            fs::rename(&aside, &path).map_err(pin)?;
        }
        let Some(info) = pinned(&path, shape, dir)? else { continue };
        let wanted = sizes.get(shape.name).copied().unwrap_or(shape.entries);
        let has = info.max_entries();
        if wanted < has && !shape.may_shrink {
            warn!(map = shape.name, entries = has, "map keeps its size: it can only grow");
        } else if wanted != has {
            let old = open(&path)?;
            fs::rename(&path, &aside).map_err(pin)?;
            info!(map = shape.name, from = has, to = wanted, "map gets another size");
            replaced.push(Replaced { shape, old, aside: Some(aside) });
        }
    }
    Ok(replaced)
}

/// After loading, every map must be what we believe it to be: the object and the agent are of one build.
pub(super) fn verify(maps: &Path, dir: &Path) -> Result<(), Error> {
    SHAPES.iter().try_for_each(|shape| pinned(&maps.join(shape.name), shape, dir).map(|_| ()))
}

fn pinned(path: &Path, shape: &Shape, dir: &Path) -> Result<Option<MapInfo>, Error> {
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

/// What is pinned there, if it is something else than a map: asked for its shape, a program or a link
/// would answer too, and the answer would mean something else.
fn other_than_map(path: &Path) -> Option<String> {
    let object = syscall::open_pin(path).ok()?;
    let kind = fs::read_link(format!("/proc/self/fd/{}", object.as_raw_fd())).ok()?;
    let kind = kind.to_str()?.strip_prefix("anon_inode:")?.replace('_', "-");
    (kind != "bpf-map").then(|| format!("no map but a {kind}"))
}
