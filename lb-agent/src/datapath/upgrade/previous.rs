//! The data path of another layout, left by another version. It serves until ours is loaded beside it and programmed.
//! Then its links are taken over one by one, each atomically.
//!
//! Maps of the same shape and fingerprint are copied. Others start empty, and the log says so.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::iter;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use aya::maps::{MapData, MapInfo};
use lb_common::maps::{Author, Content};
use tracing::{info, warn};

use super::resize::transient;
use super::{fingerprint, handover};
use crate::datapath::detach::{detach_where, remove_layout};
use crate::datapath::error::Error;
use crate::datapath::names::LAYOUT;
use crate::datapath::pins::{self, is_aside, layouts, list};
use crate::maps::{MapShape, SHAPES, copy, mark_all};
use crate::syscall;

/// Directories of other layouts whose programs are attached, the newest last. Usually one; more if a run of a third
/// version was interrupted during its own upgrade.
#[derive(Debug)]
pub(in crate::datapath) struct Previous {
    layouts: Vec<PathBuf>,
}

/// Reports whether any interface has an XDP program of this layout or of earlier ones.
pub(in crate::datapath) fn has_xdp(dir: &Path, previous: Option<&Previous>) -> bool {
    let earlier = previous.into_iter().flat_map(|it| it.layouts.iter().map(PathBuf::as_path));
    iter::once(dir).chain(earlier).any(|layout| pins::has_xdp(&layout.join("links")))
}

impl Previous {
    /// Finds the data path that serves beside our layout; `None` if no program of another layout is attached. Pins of
    /// layouts that no longer serve are removed.
    ///
    /// An interrupted run may have taken over every link without copying the last entries. Then its links, in our
    /// layout or a third one, have others beside them.
    pub(in crate::datapath) fn find(dir: &Path) -> Result<Option<Self>, Error> {
        let all = layouts(dir)?;
        let under_way = all.iter().map(|layout| handover::is_under_way(&layout.join("links")));
        let is_halfway = under_way.collect::<Result<Vec<bool>, Error>>()?.contains(&true);
        let mut found = Vec::new();
        for layout in all {
            if layout.ends_with(LAYOUT) {
                continue;
            }
            let is_empty = |part| Ok::<_, Error>(list(&layout.join(part))?.is_empty());
            if !is_empty("links")? || is_halfway && !is_empty("maps")? {
                found.push(layout);
            } else if let Err(error) = remove(&layout) {
                warn!(
                    error = crate::chain(&error),
                    "pins of another layout could not be removed; they have no effect on traffic"
                );
            }
        }
        // The directory of maps is created with the layout, so its age is that of the layout.
        let made = |layout: &PathBuf| fs::metadata(layout.join("maps"))?.modified();
        found.sort_by_cached_key(|layout| made(layout).ok());
        Ok((!found.is_empty()).then_some(Self { layouts: found }))
    }

    /// Copies everything that our maps can hold; called again, only what came since.
    ///
    /// Tables refer to each other's rows, so they are copied from one layout only: the newest, which had taken over
    /// those of the others. Its settings are copied too: flows still have the sources, the ports and the epoch that
    /// they name. Packets write into the flow maps of all layouts. The newest is copied first, because entries that
    /// exist stay.
    pub(in crate::datapath) fn copy(&self, maps: &Path, is_first: bool) -> Result<(), Error> {
        let newest = self.layouts.last();
        for layout in self.layouts.iter().rev() {
            let is_ours = |shape: &&MapShape| {
                let is_state = shape.content.is_sizable() || shape.content == Content::State;
                let is_state = is_state && Some(layout) == newest;
                // Without the filters no packet would be looked up in the copied tables.
                let is_filter = shape.content == Content::Filter;
                shape.content.may_shrink() || is_first && (is_state || is_filter)
            };
            for shape in SHAPES.iter().filter(is_ours) {
                copy_one(shape, layout, &maps.join(shape.name), is_first)?;
            }
        }
        Ok(())
    }

    /// Shares maps that packets write between the newest layout and ours, where shape, fingerprint and size are the
    /// same. Flows that either programs begin are then known to both.
    pub(in crate::datapath) fn share(
        &self,
        maps: &Path,
        sizes: &BTreeMap<&'static str, u32>,
    ) -> Result<(), Error> {
        let Some(newest) = self.layouts.last() else { return Ok(()) };
        let is_filter =
            |shape: &MapShape| shape.content == Content::Filter && shape.author == Author::Programs;
        for shape in SHAPES.iter().filter(|shape| shape.content.may_shrink() || is_filter(shape)) {
            let (from, to) = (newest.join("maps").join(shape.name), maps.join(shape.name));
            let wanted = sizes.get(shape.name).copied().unwrap_or(shape.entries);
            // A map of another size is not shared but copied, so that the configured size takes effect.
            let is_ours = |info: MapInfo| shape.fits(&info) && info.max_entries() == wanted;
            // A map of ours that exists is in use already: an interrupted run has shared or created it.
            if to.exists() || !from.exists() || !fingerprint::is_same(newest, shape) {
                continue;
            }
            if MapInfo::from_pin(&from).is_ok_and(is_ours) {
                let shared =
                    syscall::open_pin(&from).and_then(|map| syscall::pin(map.as_fd(), &to));
                shared.map_err(|source| Error::Pin { path: to, source })?;
            }
        }
        Ok(())
    }

    /// Moves the pin of a link from another layout to ours, unless ours has one of that name.
    pub(in crate::datapath) fn adopt_link(&self, path: &Path) -> io::Result<()> {
        let Some(name) = path.file_name().filter(|_| !path.exists()) else { return Ok(()) };
        for layout in &self.layouts {
            match fs::rename(layout.join("links").join(name), path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => return result,
            }
        }
        Ok(())
    }

    /// Detaches the links that ours did not replace: their packets would write entries that are not read any more.
    /// Programs that only answer stay until those entries are copied.
    pub(super) fn end(&self) -> Result<(), Error> {
        self.layouts.iter().try_for_each(|layout| {
            detach_where(&layout.join("links"), |path| !is_aside(path)).map(drop)
        })
    }

    /// Removes the remaining pins of these layouts.
    pub(super) fn forget(&self) -> Result<(), Error> {
        self.layouts.iter().try_for_each(|layout| remove(layout))
    }
}

fn remove(layout: &Path) -> Result<(), Error> {
    remove_layout(layout, &mut Vec::new())?;
    info!(layout = %layout.display(), "data path of another layout removed");
    Ok(())
}

fn copy_one(shape: &MapShape, layout: &Path, to: &Path, is_first: bool) -> Result<(), Error> {
    let from = &layout.join("maps").join(shape.name);
    let pin = |path: &Path, error: &dyn std::fmt::Display| Error::Pin {
        path: path.to_owned(),
        source: io::Error::other(error.to_string()),
    };
    let fits = from.exists() && MapInfo::from_pin(from).is_ok_and(|info| shape.fits(&info));
    if !fits || !fingerprint::is_same(layout, shape) {
        if is_first {
            let (map, layout) = (shape.name, layout.display());
            if shape.content == Content::Filter {
                let new = MapData::from_pin(to).map_err(|error| pin(to, &error))?;
                // No record tells which bits the other layout would have set; set bits only cost lookups.
                return mark_all(map, &new).map_err(|error| pin(to, &error));
            }
            warn!(map, %layout, "map contents differ in the previous layout; starting empty");
        }
        return Ok(());
    }
    let old = MapData::from_pin(from).map_err(|error| pin(from, &error))?;
    let new = MapData::from_pin(to).map_err(|error| pin(to, &error))?;
    let id = |map: &MapData| map.info().map(|info| info.id()).map_err(|error| pin(to, &error));
    // A shared map is its own source.
    if id(&old)? == id(&new)? {
        return Ok(());
    }
    copy(shape.name, &old, &new, transient(to).as_ref()).map_err(|error| pin(to, &error))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_layout_stays_until_its_maps_were_carried_over() {
        let directory = tempfile::tempdir().unwrap();
        let (dir, other) = (directory.path(), directory.path().join("v0"));
        let make = |path: &str| {
            fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
            fs::write(dir.join(path), "").unwrap();
        };
        let ours = |name: &str| format!("{LAYOUT}/links/{name}");
        make("v0/links/connect4");
        make("v0/maps/FLOWS6");
        make(&ours("7-egress"));
        assert!(Previous::find(dir).unwrap().is_some(), "its programs are attached");
        fs::rename(other.join("links/connect4"), dir.join(ours("recvmsg4-old"))).unwrap();
        assert!(Previous::find(dir).unwrap().is_some(), "its programs are in links of this layout");
        fs::remove_file(dir.join(ours("recvmsg4-old"))).unwrap();
        assert!(Previous::find(dir).unwrap().is_none() && !other.exists(), "no program uses it");
        assert!(dir.join(ours("7-egress")).exists());
    }

    #[test]
    fn two_layouts_that_a_third_finds_stay_both_and_the_newest_is_the_last() {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path();
        let make = |path: &str| {
            fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
            fs::write(dir.join(path), "").unwrap();
        };
        // v1 had taken over every link of v7 when it ended. v0 is newer than both.
        for path in
            ["v7/maps/FLOWS6", "v1/maps/FLOWS6", "v1/links/7-egress-old", "v0/links/7-egress"]
        {
            make(path);
        }
        fs::create_dir_all(dir.join("v0/maps")).unwrap();
        for (layout, seconds) in [("v7", 1), ("v1", 2), ("v0", 3)] {
            let maps = fs::File::open(dir.join(layout).join("maps")).unwrap();
            let made = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            maps.set_modified(made).unwrap();
        }
        let found = Previous::find(dir).unwrap().unwrap();
        assert_eq!(found.layouts, ["v7", "v1", "v0"].map(|name| dir.join(name)));
    }
}
