//! The memory of a full map.

use aya::maps::MapType;

use super::MapShape;

/// Bytes that the kernel adds to an entry of a hash (`struct htab_elem`).
const OF_ENTRY: u64 = 48;
/// Bytes of a bucket of a hash (`struct bucket`).
const OF_BUCKET: u64 = 16;

impl MapShape {
    /// Returns the kernel memory in bytes of a map of this shape with `entries` entries, all in use.
    pub fn bytes(&self, entries: u32) -> u64 {
        let [key, value] = [self.key, self.value].map(|size| u64::from(size.next_multiple_of(8)));
        let whole = OF_ENTRY + key + value;
        let entry = if self.kind == MapType::Array {
            return value * u64::from(entries);
        } else if self.kind == MapType::Hash {
            // Without preallocation, each entry comes from caches of fixed sizes.
            allocated(whole)
        } else if self.kind == MapType::LpmTrie {
            // A trie needs up to one inner node for each prefix.
            allocated(whole) * 2
        } else {
            whole
        };
        let buckets = u64::from(entries).next_power_of_two() * OF_BUCKET;
        entry * u64::from(entries) + buckets
    }
}

/// Returns the size of the cache that serves an allocation of `bytes` (kernel/bpf/memalloc.c).
const fn allocated(bytes: u64) -> u64 {
    match bytes {
        ..=96 => 96,
        97..=128 => 128,
        129..=192 => 192,
        193..=256 => 256,
        _ => bytes.next_power_of_two(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_sizes_are_those_of_the_kernel() {
        let bytes = |name: &str, entries| MapShape::of(name).unwrap().bytes(entries);
        assert_eq!(bytes("MAGLEV", 1_000), 64_000);
        assert_eq!(bytes("FLOWS4", 1_024), 1_024 * (128 + 16));
        assert_eq!(bytes("FLOWS6", 1_024), 1_024 * (192 + 16));
        assert_eq!(bytes("TRANSIENT4", 1_024), 1_024 * (48 + 72 + 16));
    }
}
