//! Selects the manifests among the files of a directory, and reads them.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// Returns the content of a regular file and its modification time. Other types of files could block or have no end.
pub(super) fn text(path: &Path) -> io::Result<(String, i64)> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    Ok((fs::read_to_string(path)?, written(&metadata)))
}

/// Returns the modification time in seconds, 0 if unknown.
fn written(metadata: &Metadata) -> i64 {
    let time = metadata.modified().ok();
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_secs().cast_signed())
}

/// Returns the name of a file if its extension is that of a manifest.
pub(super) fn manifest(name: &OsStr) -> Option<Arc<str>> {
    let name = name.to_str()?;
    let (stem, extension) = name.rsplit_once('.')?;
    let wanted = ["yaml", "yml", "json"].contains(&extension);
    (wanted && !stem.is_empty() && !name.starts_with('.')).then(|| Arc::from(name))
}
