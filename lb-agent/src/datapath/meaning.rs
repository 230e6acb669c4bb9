//! What the bytes in maps mean, beside the maps: folders `meanings/<map>-<fingerprint>`, for a bpffs holds no files.
//!
//! Maps of one size may hold different things in two layouts. Without the right fingerprint none is read as ours.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Error, cleanup};
use crate::maps::{SHAPES, Shape};

/// The folder beside `maps`.
pub(super) const FOLDER: &str = "meanings";

/// Whether what a map of a layout holds is what ours of that name holds.
pub(super) fn is_same(layout: &Path, shape: &Shape) -> bool {
    mark(layout, shape).is_dir()
}

/// Writes down what our maps hold. Refuses where an earlier run wrote down something else for a map that is there.
pub(super) fn note(layout: &Path, dir: &Path) -> Result<(), Error> {
    let noted = cleanup::list(&layout.join(FOLDER))?;
    for shape in &SHAPES {
        let mark = mark(layout, shape);
        let is_others = |noted: &&PathBuf| {
            let name = noted.file_name().and_then(|name| name.to_str());
            **noted != mark
                && name
                    .and_then(|name| name.split_once('-'))
                    .is_some_and(|(map, _)| map == shape.name)
        };
        let path = layout.join("maps").join(shape.name);
        if let Some(other) = noted.iter().find(is_others).filter(|_| path.exists()) {
            let found = format!("a map whose bytes mean something else ({})", other.display());
            let (wanted, dir) = (format!("{shape}, as {}", mark.display()), dir.to_owned());
            return Err(Error::PinShape { path, found, wanted, dir });
        }
        let folder =
            |source| Error::Folder { path: mark.clone(), what: "cannot be made".into(), source };
        fs::create_dir_all(&mark).map_err(folder)?;
    }
    Ok(())
}

fn mark(layout: &Path, shape: &Shape) -> PathBuf {
    layout.join(FOLDER).join(format!("{}-{:016x}", shape.name, shape.meaning))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_is_noted_is_known_again_and_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (layout, flows) = (folder.path(), Shape::of("FLOWS").unwrap());
        assert!(!is_same(layout, flows), "nothing says so");
        note(layout, layout).unwrap();
        note(layout, layout).unwrap();
        assert!(SHAPES.iter().all(|shape| is_same(layout, shape)));
        fs::rename(mark(layout, flows), layout.join(FOLDER).join("FLOWS-0123456789abcdef"))
            .unwrap();
        assert!(!is_same(layout, flows));
        fs::create_dir_all(layout.join("maps/FLOWS")).unwrap();
        let refused = note(layout, layout).unwrap_err().to_string();
        assert!(
            refused.contains("maps/FLOWS is a map whose bytes mean something else"),
            "{refused}"
        );
        assert!(refused.contains("cleanup"), "{refused}");
    }

    #[test]
    fn every_map_has_a_meaning_of_its_own() {
        let meanings: BTreeSet<u64> = SHAPES.iter().map(|shape| shape.meaning).collect();
        assert_eq!(meanings.len(), SHAPES.len());
    }
}
