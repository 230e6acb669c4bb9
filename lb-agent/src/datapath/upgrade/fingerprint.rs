//! Records the fingerprint of each map beside the maps: directories `meanings/<map>-<fingerprint>`, because a bpffs
//! cannot contain files.
//!
//! Maps of one size may contain different types in two layouts. A map without the right fingerprint is not read.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lb_common::event::{Event, Hook, Verdict};
use lb_common::layout::{named, number};
use lb_common::maps::Content;
use tracing::info;

use crate::datapath::error::Error;
use crate::datapath::names::{FINGERPRINTS, LAYOUT};
use crate::datapath::pins::{list, remove_pin};
use crate::maps::{MapShape, SHAPES};

/// Reports whether a map of a layout has the same content type as ours of that name.
pub(super) fn is_same(layout: &Path, shape: &MapShape) -> bool {
    entry(layout, shape).is_dir()
}

/// Reports whether the maps below a `--bpf-dir` belong to a build whose maps of the same name have other fingerprints.
pub fn is_of_another_build(dir: &Path) -> bool {
    let layout = dir.join(LAYOUT);
    others(&layout).is_ok_and(|others| !others.is_empty())
}

/// Renames a layout that another build left under our name. Two builds may use one name for different layouts. Under a
/// new name the other build's maps are taken over like those of any other layout.
pub(in crate::datapath) fn set_aside(dir: &Path) -> Result<(), Error> {
    let ours = dir.join(LAYOUT);
    // Counters with another fingerprint are just reset.
    let other = others(&ours)?.into_iter().find(|shape| shape.content != Content::Counters);
    let Some(shape) = other else { return Ok(()) };
    // Any free number will do: `layouts` finds every directory with a name of this form.
    let names = (0_u32..).map(|number| dir.join(format!("v{number}")));
    let Some(name) = names.into_iter().find(|name| !name.exists()) else { return Ok(()) };
    let renamed = fs::rename(&ours, &name);
    renamed.map_err(|source| Error::Pin { path: ours, source })?;
    info!(map = shape.name, name = %name.display(), "maps of another build have another format; directory renamed");
    Ok(())
}

/// Removes counters that another build numbers differently. Ours start at 0 in a new map; programs still attached count
/// in the old one until ours replace them.
pub(in crate::datapath) fn forget_counters(layout: &Path) -> Result<(), Error> {
    for shape in others(layout)?.into_iter().filter(|shape| shape.content == Content::Counters) {
        remove_pin(&layout.join("maps").join(shape.name))?;
        info!(map = shape.name, "the earlier build has other counters; counters restart at 0");
    }
    Ok(())
}

/// Returns the maps of a layout for which an earlier run recorded another fingerprint.
fn others(layout: &Path) -> Result<Vec<&'static MapShape>, Error> {
    let recorded = list(&layout.join(FINGERPRINTS))?;
    let is_other = |shape: &&MapShape| {
        let is_there = layout.join("maps").join(shape.name).exists();
        is_there && recorded.iter().any(|entry| is_about(entry, shape)) && !is_same(layout, shape)
    };
    Ok(SHAPES.iter().filter(is_other).collect())
}

/// Records the fingerprints of our maps. To be called after [`set_aside`].
pub(in crate::datapath) fn record(layout: &Path) -> Result<(), Error> {
    let recorded = list(&layout.join(FINGERPRINTS))?;
    for shape in &SHAPES {
        let entry = entry(layout, shape);
        // This record is about a map that was removed.
        for old in recorded.iter().filter(|old| **old != entry && is_about(old, shape)) {
            remove(old)?;
        }
        fs::create_dir_all(&entry).map_err(|source| Error::Pin { path: entry, source })?;
    }
    Ok(())
}

fn remove(entry: &Path) -> Result<(), Error> {
    match fs::remove_dir(entry) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::Pin { path: entry.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn is_about(entry: &Path, shape: &MapShape) -> bool {
    let name = entry.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.split_once('-')).is_some_and(|(map, _)| map == shape.name)
}

fn entry(layout: &Path, shape: &MapShape) -> PathBuf {
    layout.join(FINGERPRINTS).join(format!("{}-{:016x}", shape.name, fingerprint(shape)))
}

/// Returns the fingerprint of a map: types, kind and fixed size; for counters also the name of each position.
fn fingerprint(shape: &MapShape) -> u64 {
    let of = shaped(shape.fingerprint, shape);
    if shape.content == Content::Counters { counters(of) } else { of }
}

/// Adds the kind of a map and its sizes to a hash, and the number of entries if it is fixed.
pub(super) fn shaped(hash: u64, shape: &MapShape) -> u64 {
    let entries = if shape.content.is_sizable() { 0 } else { shape.entries };
    number(named(hash, &shape.to_string()), entries.into())
}

/// Adds the name of each counter to a hash, in order.
fn counters(hash: u64) -> u64 {
    let hooks = Hook::ALL.iter().map(|hook| hook.name());
    let verdicts = Verdict::all().map(Verdict::name);
    let events = Event::ALL.iter().map(|event| event.name());
    hooks.chain(verdicts).chain(events).fold(hash, named)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn recorded_maps_are_recognized_and_foreign_ones_renamed() {
        let directory = tempfile::tempdir().unwrap();
        let (dir, layout) = (directory.path(), directory.path().join(LAYOUT));
        let flows = MapShape::of("FLOWS6").unwrap();
        assert!(!is_same(&layout, flows), "there is no record");
        record(&layout).unwrap();
        record(&layout).unwrap();
        assert!(SHAPES.iter().all(|shape| is_same(&layout, shape)));
        // A fingerprint of another build is about a map that does not exist, so there is nothing to take over.
        let other = layout.join(FINGERPRINTS).join("FLOWS6-0123456789abcdef");
        fs::rename(entry(&layout, flows), &other).unwrap();
        assert!(!is_same(&layout, flows) && !is_of_another_build(dir));
        record(&layout).unwrap();
        assert!(is_same(&layout, flows) && !other.exists());
        // Now the map exists as well.
        fs::rename(entry(&layout, flows), &other).unwrap();
        fs::create_dir_all(layout.join("maps/FLOWS6")).unwrap();
        fs::create_dir(dir.join("v0")).unwrap();
        assert!(is_of_another_build(dir));
        set_aside(dir).unwrap();
        assert!(!layout.exists() && dir.join("v1/maps/FLOWS6").exists());
        assert!(!is_of_another_build(dir));
    }

    #[test]
    fn counters_of_another_build_restart_in_the_same_layout() {
        let directory = tempfile::tempdir().unwrap();
        let (dir, layout) = (directory.path(), directory.path().join(LAYOUT));
        record(&layout).unwrap();
        fs::create_dir_all(layout.join("maps")).unwrap();
        for map in ["COUNTERS", "FLOWS6"] {
            fs::write(layout.join("maps").join(map), "").unwrap();
        }
        forget_counters(&layout).unwrap();
        assert!(layout.join("maps/COUNTERS").exists(), "this build counts the same");
        let other = layout.join(FINGERPRINTS).join("COUNTERS-0123456789abcdef");
        fs::rename(entry(&layout, MapShape::of("COUNTERS").unwrap()), other).unwrap();
        assert!(is_of_another_build(dir), "our names would be wrong for them");
        set_aside(dir).unwrap();
        forget_counters(&layout).unwrap();
        assert!(!layout.join("maps/COUNTERS").exists() && layout.join("maps/FLOWS6").exists());
        assert!(!is_of_another_build(dir));
    }

    #[test]
    fn counters_of_other_events_are_other_maps() {
        let shape = MapShape::of("COUNTERS").unwrap();
        assert_ne!(fingerprint(shape), number(named(shape.fingerprint, &shape.to_string()), 0));
        let more = {
            let mut more = *shape;
            more.entries += 1;
            more
        };
        assert_ne!(fingerprint(shape), fingerprint(&more));
    }

    #[test]
    fn every_map_has_a_fingerprint_of_its_own() {
        let fingerprints: BTreeSet<u64> = SHAPES.iter().map(fingerprint).collect();
        assert_eq!(fingerprints.len(), SHAPES.len());
    }
}
