//! Facts of the kernel about each pinned map: its kind, its sizes, and the memory it takes.

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use aya::maps::MapData;

use super::error::{Result, batched, named};
use super::shape::{SHAPES, kind};

/// One map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub name: &'static str,
    /// Its kind, in a few words.
    pub kind: &'static str,
    /// Entries it can hold.
    pub max: u32,
    /// Bytes of a key.
    pub key: u32,
    /// Bytes of a value.
    pub value: u32,
    /// Bytes of kernel memory, all CPUs together (`memlock` of its fdinfo; exact since Linux 6.4).
    pub bytes: u64,
}

/// Every map pinned in a directory, in the order of [`SHAPES`].
pub fn kept(pins: &Path) -> Result<Vec<Kept>> {
    SHAPES.iter().map(|shape| read(pins, shape.name)).collect()
}

fn read(pins: &Path, name: &'static str) -> Result<Kept> {
    let map = MapData::from_pin(pins.join(name)).map_err(named(name))?;
    let info = map.info().map_err(named(name))?;
    let fd = map.fd().as_fd().as_raw_fd();
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).map_err(batched(name))?;
    Ok(Kept {
        name,
        kind: info.map_type().map_or("unknown", kind),
        max: info.max_entries(),
        key: info.key_size(),
        value: info.value_size(),
        bytes: memory(&text).unwrap_or(0),
    })
}

/// The line that begins with `memlock:`.
fn memory(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("memlock:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_fdinfo() {
        assert_eq!(memory("pos:\t0\nmap_type:\t1\nmemlock:\t4096\nmap_id:\t7\n"), Some(4096));
        assert_eq!(memory("pos:\t0\n"), None);
    }
}
