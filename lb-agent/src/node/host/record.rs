//! Files with the settings of the network namespace from before the agent, for `lb-agent cleanup`.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::Error;

/// Writes a record whole or not at all: an empty file on a full disk would stand for values that cannot be restored.
pub(super) fn write<T: Serialize>(record: &Path, settings: &T) -> Result<(), Error> {
    let write = || {
        let next = record.with_extension("next");
        record.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&next, serde_json::to_vec(settings).map_err(io::Error::other)?)?;
        fs::rename(next, record)
    };
    write().map_err(|error| Error::System("saved sysctl values", error))
}

/// Returns the saved settings, if there are any.
pub(super) fn read<T: DeserializeOwned>(record: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(record).ok()?).ok()
}

/// Removes a record whose settings are restored.
pub(super) fn remove(record: &Path) -> Result<(), Error> {
    fs::remove_file(record).map_err(|error| Error::System("saved sysctl values", error))
}
