//! Reading whole maps in batches.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use aya::Pod;
use aya::maps::MapData;

use crate::syscall::{self, Position};

/// `BPF_NOEXIST`: fails if the entry exists.
pub(super) const NO_EXIST: u64 = 1;
/// `BPF_EXIST`: fails if the entry does not exist.
pub(super) const EXIST: u64 = 2;

/// Entries for each system call. A hash bucket must fit, and 4,096 flows are 425 KiB.
const BATCH: usize = 4_096;

/// Calls `see` for each entry of a map, until it returns false.
pub(crate) fn walk<K: Pod, V: Pod>(
    map: &MapData,
    zero: (K, V),
    mut see: impl FnMut(&K, &V) -> bool,
) -> io::Result<()> {
    let mut length = BATCH;
    let mut keys = vec![zero.0; length];
    let mut values = vec![zero.1; length];
    let mut position: Option<Position> = None;
    loop {
        let fd = map.fd().as_fd();
        match syscall::lookup_batch(fd, position.as_ref(), &mut keys, &mut values) {
            Ok(batch) => {
                // The rest of the buffer is from an earlier batch.
                let mut entries = keys.iter().zip(&values).take(batch.count);
                let goes_on = entries.all(|(key, value)| see(key, value));
                position = batch.next;
                if position.is_none() || !goes_on {
                    return Ok(());
                }
            }
            // A bucket has more entries than the buffer: double it and read again (kernel `htab_map_lookup_batch`).
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && length < 1 << 20 => {
                length *= 2;
                keys.resize(length, zero.0);
                values.resize(length, zero.1);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Returns the number of entries of a map.
pub(crate) fn count<K: Pod, V: Pod>(map: &MapData, zero: (K, V)) -> io::Result<usize> {
    let mut count = 0;
    walk(map, zero, |_, _| {
        count += 1;
        true
    })?;
    Ok(count)
}

/// Removes an entry, and returns its value at that moment; `None` if it does not exist.
pub(crate) fn take<K: Pod, V: Pod + Default>(map: &MapData, key: &K) -> io::Result<Option<V>> {
    let mut value = V::default();
    match syscall::take(map.fd().as_fd(), key, &mut value) {
        Ok(()) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes entries; some may no longer exist.
pub(crate) fn remove<K: Pod>(map: &MapData, keys: &[K]) -> io::Result<()> {
    let fd: BorrowedFd<'_> = map.fd().as_fd();
    keys.chunks(BATCH).try_for_each(|keys| syscall::delete_batch(fd, keys))
}
