//! The journal of service names: names added since the state file was written, in a file beside it.
//!
//! A name is written before its rows, so that every visible row can be named. The state file is megabytes and written
//! once a second at most; the journal takes one line for each name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use lb_common::service::ServiceId;

/// The current file, and the file it is renamed to while the state is written.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    new: PathBuf,
    before: PathBuf,
}

impl Journal {
    pub(crate) fn next_to(state: &Path) -> Self {
        let file = |name| state.with_file_name(name);
        Self { new: file("names"), before: file("names-before") }
    }

    pub(crate) fn add(&self, names: &[(ServiceId, String)]) -> io::Result<()> {
        if let Some(directory) = self.new.parent() {
            fs::create_dir_all(directory)?;
        }
        let lines: Vec<String> = names.iter().map(|(id, name)| format!("{id} {name}\n")).collect();
        // All lines are in one write: a crash can cut only the last one, which the reader ignores.
        let mut file = File::options().create(true).append(true).open(&self.new)?;
        file.write_all(lines.concat().as_bytes())
    }

    /// Moves the current names aside, because the state that is written now contains them.
    ///
    /// They are still read until [`Journal::forget`], together with the names of an earlier state that could not be
    /// written.
    pub(crate) fn take(&self) -> io::Result<()> {
        let names = match fs::read(&self.new) {
            // No name was added.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => read?,
        };
        if !self.before.exists() {
            return fs::rename(&self.new, &self.before);
        }
        File::options().append(true).open(&self.before)?.write_all(&names)?;
        fs::remove_file(&self.new)
    }

    /// Returns the paths of both files.
    pub(super) fn files(&self) -> [&Path; 2] {
        [&self.new, &self.before]
    }

    /// Removes the names that were set aside: the state is written.
    pub(crate) fn forget(&self) {
        drop(fs::remove_file(&self.before));
    }

    /// Reads the names added since the last state. Names move from the current file to the one set aside, and from
    /// there into the state. Read in that order, and before the state, none is missed.
    pub(crate) fn read(&self) -> BTreeMap<u32, String> {
        let [new, before] =
            [&self.new, &self.before].map(|file| fs::read_to_string(file).unwrap_or_default());
        names(&before).chain(names(&new)).collect()
    }
}

/// Parses the names in a journal; an incomplete last line is ignored.
fn names(text: &str) -> impl Iterator<Item = (u32, String)> {
    let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    lines.filter_map(|line| {
        let (id, name) = line.split_once(' ')?;
        Some((id.parse().ok()?, name.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_from_when_it_came_until_the_state_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let names = Journal::next_to(&directory.path().join("deep/state.json"));
        let read = || {
            let mut all = BTreeMap::from([(1, "old".to_owned())]);
            all.extend(names.read());
            all.into_iter().map(|(id, name)| format!("{id} {name}")).collect::<Vec<_>>()
        };
        assert_eq!(read(), ["1 old"]);
        names.add(&[(1, "one".to_owned()), (2, "a/two:p".to_owned())]).unwrap();
        assert_eq!(read(), ["1 one", "2 a/two:p"]);
        names.take().unwrap();
        names.add(&[(3, "three".to_owned())]).unwrap();
        assert_eq!(read(), ["1 one", "2 a/two:p", "3 three"]);
        names.take().unwrap();
        assert_eq!(read(), ["1 one", "2 a/two:p", "3 three"], "the state was not written");
        names.forget();
        assert_eq!(read(), ["1 old"]);
        names.take().unwrap();
        names.add(&[(3, "three".to_owned())]).unwrap();
        assert_eq!(read(), ["1 old", "3 three"]);
        let mut file =
            File::options().append(true).open(directory.path().join("deep/names")).unwrap();
        file.write_all(b"4 fo").unwrap();
        assert_eq!(read(), ["1 old", "3 three"]);
    }
}
