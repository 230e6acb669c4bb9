//! Selects the files of a directory that count, and reads them.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// The content of a regular file, and when it was written. Others would make us wait, or have no end.
pub(super) fn text(path: &Path) -> io::Result<(String, i64)> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    Ok((fs::read_to_string(path)?, written(&metadata)))
}

/// When a file was written, in seconds; 0 where that is not known.
fn written(metadata: &Metadata) -> i64 {
    let time = metadata.modified().ok();
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_secs().cast_signed())
}

/// The name of a file, if it is one we read.
pub(super) fn manifest(name: &OsStr) -> Option<Arc<str>> {
    let name = name.to_str()?;
    let (stem, extension) = name.rsplit_once('.')?;
    let wanted = ["yaml", "yml", "json"].contains(&extension);
    (wanted && !stem.is_empty() && !name.starts_with('.')).then(|| Arc::from(name))
}
