//! The kernel's description of each pinned map: kind, sizes and memory.

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use aya::maps::MapData;

use super::error::{Result, batched, named};
use super::shape::{SHAPES, kind};

/// The description of one map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub name: &'static str,
    /// Kind of the map, in a few words.
    pub kind: &'static str,
    /// Largest number of entries.
    pub max: u32,
    /// Size of a key, in bytes.
    pub key: u32,
    /// Size of a value, in bytes.
    pub value: u32,
    /// Kernel memory in bytes, of all CPUs together (`memlock` in its fdinfo; exact since Linux 6.4).
    pub bytes: u64,
}

/// Returns every map pinned in a directory, in the order of [`SHAPES`].
pub fn kept(pins: &Path) -> Result<Vec<Kept>> {
    SHAPES.iter().map(|shape| read(pins, shape.name)).collect()
}

fn read(pins: &Path, name: &'static str) -> Result<Kept> {
    let map = MapData::from_pin(pins.join(name)).map_err(named(name))?;
    let info = map.info().map_err(named(name))?;
    let fd = map.fd().as_fd().as_raw_fd();
    // The memory of a map is shown only there (`bpf_map_show_fdinfo` in `kernel/bpf/syscall.c`).
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

/// Returns the value of `memlock:` in an fdinfo.
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
