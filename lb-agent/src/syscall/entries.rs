//! Map entries, one by one and in batches, and maps with a single entry.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use aya::Pod;

use super::{attributes, bpf, number, opened};

const MAP_CREATE: u32 = 0;
const MAP_LOOKUP: u32 = 1;
const MAP_UPDATE: u32 = 2;
const MAP_LOOKUP_AND_DELETE: u32 = 21;
const MAP_LOOKUP_BATCH: u32 = 24;
const MAP_UPDATE_BATCH: u32 = 26;
const MAP_DELETE_BATCH: u32 = 27;

/// Position of a walk through a map. The kernel needs space for a key, or for a bucket number.
pub(crate) type Position = [u8; 64];

/// The result of a batch lookup: one part of a walk through a map.
pub(crate) struct BatchResult {
    /// Number of entries that were read.
    pub(crate) count: usize,
    /// Position to continue at; `None` at the end of the map.
    pub(crate) next: Option<Position>,
}

/// Creates an array of a kind (`BPF_MAP_TYPE_...`) with one entry of four bytes. `inner` is the template of an array of
/// maps, else 0.
pub(super) fn single(kind: u32, inner: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct MapAttributes {
        kind: u32,
        key: u32,
        value: u32,
        entries: u32,
        flags: u32,
        inner: u32,
    }
    let (key, value) = (size_of::<u32>() as u32, size_of::<u32>() as u32);
    opened(MAP_CREATE, &mut MapAttributes { kind, key, value, entries: 1, flags: 0, inner })
}

/// Reads entries into `keys` and `values`, from the beginning or from a position. Linux 5.6.
///
/// An entry that is added or removed meanwhile may be missed. `ENOSPC`: the slices are too short for a bucket.
pub(crate) fn lookup_batch<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    from: Option<&Position>,
    keys: &mut [K],
    values: &mut [V],
) -> io::Result<BatchResult> {
    let mut next: Position = [0; 64];
    let mut attributes = attributes::Batch {
        from: from.map_or(0, |from| from.as_ptr().addr() as u64),
        to: next.as_mut_ptr().addr() as u64,
        keys: keys.as_mut_ptr().addr() as u64,
        values: values.as_mut_ptr().addr() as u64,
        count: keys.len().min(values.len()) as u32,
        map: number(map),
        ..attributes::Batch::default()
    };
    let result = bpf(MAP_LOOKUP_BATCH, &mut attributes);
    let count = attributes.count as usize;
    match result {
        Ok(_) => Ok(BatchResult { count, next: Some(next) }),
        // The kernel ends the walk with this error and has still filled `count` entries
        // (`__htab_map_lookup_and_delete_batch`).
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            Ok(BatchResult { count, next: None })
        }
        Err(error) => Err(error),
    }
}

/// Reads an entry of a map whose values have the size of `V`. Error `ENOENT`: it does not exist.
pub(crate) fn lookup<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    key: &K,
    value: &mut V,
) -> io::Result<()> {
    let (key, value): (*const K, *mut V) = (key, value);
    let (key, value) = (key.addr() as u64, value.addr() as u64);
    let mut entry = attributes::Element { map: number(map), pad: 0, key, value, flags: 0 };
    bpf(MAP_LOOKUP, &mut entry).map(|_| ())
}

/// Removes an entry of a hash and reads its value at that moment. Error `ENOENT`: it does not exist. Linux 5.14.
pub(crate) fn take<K: Pod, V: Pod>(map: BorrowedFd<'_>, key: &K, value: &mut V) -> io::Result<()> {
    let (key, value): (*const K, *mut V) = (key, value);
    let (key, value) = (key.addr() as u64, value.addr() as u64);
    let mut entry = attributes::Element { map: number(map), pad: 0, key, value, flags: 0 };
    bpf(MAP_LOOKUP_AND_DELETE, &mut entry).map(|_| ())
}

/// Writes an entry. `flags`: `BPF_ANY` 0, `BPF_NOEXIST` 1, `BPF_EXIST` 2.
pub(crate) fn update<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    key: &K,
    value: &V,
    flags: u64,
) -> io::Result<()> {
    let (key, value): (*const K, *const V) = (key, value);
    let (key, value) = (key.addr() as u64, value.addr() as u64);
    let mut entry = attributes::Element { map: number(map), pad: 0, key, value, flags };
    bpf(MAP_UPDATE, &mut entry).map(|_| ())
}

/// Writes entries, also over existing ones. Linux 5.6.
pub(crate) fn update_batch<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    keys: &[K],
    values: &[V],
) -> io::Result<()> {
    let mut attributes = attributes::Batch {
        keys: keys.as_ptr().addr() as u64,
        values: values.as_ptr().addr() as u64,
        count: keys.len().min(values.len()) as u32,
        map: number(map),
        ..attributes::Batch::default()
    };
    if attributes.count == 0 { Ok(()) } else { bpf(MAP_UPDATE_BATCH, &mut attributes).map(|_| ()) }
}

/// Removes entries, and skips those that do not exist. Linux 5.6.
pub(crate) fn delete_batch<K: Pod>(map: BorrowedFd<'_>, keys: &[K]) -> io::Result<()> {
    let mut rest = keys;
    while !rest.is_empty() {
        let mut attributes = attributes::Batch {
            keys: rest.as_ptr().addr() as u64,
            count: rest.len() as u32,
            map: number(map),
            ..attributes::Batch::default()
        };
        match bpf(MAP_DELETE_BATCH, &mut attributes) {
            Ok(_) => break,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                // The kernel stops at the first missing key and reports how many it had removed.
                rest = rest.get(attributes.count as usize + 1..).unwrap_or_default();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
