//! The data path of another layout that a run of another version left: it serves until ours is built beside it and
//! programmed, then its links are taken over, one by one and each at once.
//!
//! What has the same shape and the same meaning in both layouts is carried over; what has not begins anew, and that is
//! said.

use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use aya::maps::{MapData, MapInfo};
use tracing::{info, warn};

use super::{Error, LAYOUT, cleanup, meaning};
use crate::maps::{Newer, SHAPES, Shape, copy};
use crate::syscall;

/// Tells which answers may belong to a flow: without it, what is carried over of `FLOWS` would not be found.
const ENDPOINTS: &str = "ENDPOINTS";

/// Folders of other layouts that have links; usually one.
#[derive(Debug)]
pub(super) struct Previous {
    layouts: Vec<PathBuf>,
}

impl Previous {
    /// What is there beside our layout; nothing when no program of another layout is attached.
    pub(super) fn find(dir: &Path) -> Result<Option<Self>, Error> {
        let mut layouts = cleanup::layouts(dir)?;
        layouts.retain(|layout| {
            let links = fs::read_dir(layout.join("links"));
            !layout.ends_with(LAYOUT) && links.is_ok_and(|mut links| links.next().is_some())
        });
        Ok((!layouts.is_empty()).then_some(Self { layouts }))
    }

    /// Carries over what our maps can take, and when called again what came meanwhile.
    pub(super) fn copy(&self, maps: &Path, is_first: bool, newer: Newer) -> Result<(), Error> {
        for layout in &self.layouts {
            for shape in SHAPES.iter().filter(|shape| shape.is_sizable || shape.name == ENDPOINTS) {
                if is_first || shape.may_shrink {
                    copy_one(shape, layout, &maps.join(shape.name), (is_first, newer))?;
                }
            }
        }
        Ok(())
    }

    /// Makes a link of the other layout one of ours, if there is none of ours of that name yet.
    pub(super) fn take_over(&self, path: &Path) -> io::Result<()> {
        let Some(name) = path.file_name().filter(|_| !path.exists()) else { return Ok(()) };
        for layout in &self.layouts {
            match fs::rename(layout.join("links").join(name), path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => return result,
            }
        }
        Ok(())
    }

    /// Removes what is left of it.
    pub(super) fn forget(self) -> Result<(), Error> {
        for layout in self.layouts {
            cleanup::remove_layout(&layout, &mut Vec::new())?;
            info!(layout = %layout.display(), "the data path of another version is gone");
        }
        Ok(())
    }
}

fn copy_one(
    shape: &Shape,
    layout: &Path,
    to: &Path,
    (is_first, newer): (bool, Newer),
) -> Result<(), Error> {
    let from = &layout.join("maps").join(shape.name);
    let pin = |path: &Path, error: &dyn std::fmt::Display| Error::Pin {
        path: path.to_owned(),
        source: io::Error::other(error.to_string()),
    };
    let fits = from.exists() && MapInfo::from_pin(from).is_ok_and(|info| shape.fits(&info));
    if !fits || !meaning::is_same(layout, shape) {
        if is_first {
            let (map, layout) = (shape.name, layout.display());
            if map == ENDPOINTS {
                let new = MapData::from_pin(to).map_err(|error| pin(to, &error))?;
                return mark_all(&new, shape.entries).map_err(|error| pin(to, &error));
            }
            warn!(map, %layout, "holds something else in the other layout; it begins empty");
        }
        return Ok(());
    }
    let old = MapData::from_pin(from).map_err(|error| pin(from, &error))?;
    let new = MapData::from_pin(to).map_err(|error| pin(to, &error))?;
    copy(shape.name, &old, &new, newer).map_err(|error| pin(to, &error))
}

/// Sets every bit, for nothing says which ones the other layout would have set: each packet is looked up.
fn mark_all(endpoints: &MapData, words: u32) -> io::Result<()> {
    let keys: Vec<u32> = (0..words).collect();
    syscall::update_batch(endpoints.fd().as_fd(), &keys, &vec![u64::MAX; keys.len()])
}
