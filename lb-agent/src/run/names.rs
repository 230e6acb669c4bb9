//! Names of service ports that came since the state was written, in a file beside it: written before their rows are,
//! so that whoever sees a row can name it. The state is megabytes and waits a second; this is a line for each.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use lb_common::service::ServiceId;

/// The file, and the one that it becomes while the state is written.
#[derive(Clone, Debug)]
pub(super) struct Names {
    new: PathBuf,
    before: PathBuf,
}

impl Names {
    /// Beside a state.
    pub(super) fn beside(state: &Path) -> Self {
        let file = |name| state.with_file_name(name);
        Self { new: file("names"), before: file("names-before") }
    }

    /// Adds names.
    pub(super) fn add(&self, names: &[(ServiceId, String)]) -> io::Result<()> {
        if let Some(folder) = self.new.parent() {
            fs::create_dir_all(folder)?;
        }
        let lines: Vec<String> = names.iter().map(|(id, name)| format!("{id} {name}\n")).collect();
        let mut file = File::options().create(true).append(true).open(&self.new)?;
        file.write_all(lines.concat().as_bytes())
    }

    /// The state that is written now has what is in the file. It is read until [`Names::forget`], with what an earlier
    /// state that could not be written should have had.
    pub(super) fn take(&self) -> io::Result<()> {
        let names = match fs::read(&self.new) {
            // Where no name came.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => read?,
        };
        if !self.before.exists() {
            return fs::rename(&self.new, &self.before);
        }
        File::options().append(true).open(&self.before)?.write_all(&names)?;
        fs::remove_file(&self.new)
    }

    /// The state is written.
    pub(super) fn forget(&self) {
        drop(fs::remove_file(&self.before));
    }

    /// Puts names over those of the state.
    pub(super) fn read(&self, names: &mut BTreeMap<u32, String>) {
        for file in [&self.before, &self.new] {
            let text = fs::read_to_string(file).unwrap_or_default();
            // The last line may be half written.
            let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            names.extend(lines.filter_map(|line| {
                let (id, name) = line.split_once(' ')?;
                Some((id.parse::<u32>().ok()?, name.to_owned()))
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_from_when_it_came_until_the_state_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let names = Names::beside(&folder.path().join("deep/state.json"));
        let read = || {
            let mut all = BTreeMap::from([(1, "old".to_owned())]);
            names.read(&mut all);
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
        let mut file = File::options().append(true).open(folder.path().join("deep/names")).unwrap();
        file.write_all(b"4 fo").unwrap();
        assert_eq!(read(), ["1 old", "3 three"]);
    }
}
