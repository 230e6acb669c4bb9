//! Fill level and capacity of the maps.

use std::collections::BTreeMap;

use aya::maps::MapType;
use aya::maps::lpm_trie::Key;
use lb_common::maps::name;

use super::copy::zero_key;
use super::error::{Result, batched, named};
use super::handles::{MapHandle, Maps};
use super::raw::Raw;
use super::walk;
use crate::reconcile::{Limits, Usage};

macro_rules! fills {
    ($($name:ident($field:ident): $kind:ident<$key:ty, $value:ty>, $entries:expr,
        $content:ident by $author:ident, $holds:literal;)*) => {
        impl Maps {
            /// Like [`Maps::fill`], but the mirror gives the entries of the maps that the agent writes: the largest of
            /// these are not read.
            pub fn fill_given(&self, usage: &Usage) -> Result<Vec<(&'static str, usize, u32)>> {
                let mut all = Vec::new();
                $(
                    let (name, map) = (name::$name, self.$field.data());
                    let zero = (zero_key!($kind<$key>), Raw::<$value>::default());
                    let count = match known(usage, name) {
                        Some(known) => Some(known),
                        // An array always has all its elements, so there is nothing to count.
                        None if is_hash(MapType::$kind) => {
                            Some(walk::count(map, zero).map_err(batched(name))?)
                        }
                        None => None,
                    };
                    if let Some(count) = count {
                        all.push((name, count, capacity(&self.$field, name)?));
                    }
                )*
                Ok(all)
            }
        }
    };
}

lb_common::maps!(fills);

impl Maps {
    /// Returns the capacity of the maps that the agent writes.
    pub fn limits(&self) -> Result<Limits> {
        Ok(Limits {
            services: capacity(&self.services, name::SERVICES)?,
            backends: capacity(&self.backends, name::BACKENDS)?,
            lines: capacity(&self.maglev, name::MAGLEV)?,
            sources: capacity(&self.source_ranges, name::SOURCE_RANGES)?,
        })
    }

    /// Returns name, entries and capacity of every map that can fill up. It walks the maps, so it is too slow for every
    /// second.
    pub fn fill(&self) -> Result<Vec<(&'static str, usize, u32)>> {
        self.fill_given(&Usage {
            services: self.services()?.len(),
            backends: self.backends_in_use()?,
            lines: self.lines_in_use()?,
            sources: self.sources()?.len(),
        })
    }

    fn backends_in_use(&self) -> Result<usize> {
        Ok(self.backends()?.iter().filter(|row| row.service != 0).count())
    }

    fn lines_in_use(&self) -> Result<usize> {
        let services = self.services()?;
        let sets = services.iter().flat_map(|(_, service)| [service.cluster, service.local]);
        // Sets are counted by their first line, because several frontends and both policies can share a set.
        let sets: BTreeMap<u32, u32> =
            sets.filter(|set| set.members > 0).map(|set| (set.line, set.lines())).collect();
        Ok(sets.values().sum::<u32>() as usize)
    }
}

pub(super) fn capacity(map: &impl MapHandle, name: &'static str) -> Result<u32> {
    map.data().info().map(|info| info.max_entries()).map_err(named(name))
}

/// Returns the entries of a map that the agent writes, from the mirror.
fn known(usage: &Usage, map: &str) -> Option<usize> {
    match map {
        name::SERVICES => Some(usage.services),
        name::BACKENDS => Some(usage.backends),
        name::MAGLEV => Some(usage.lines),
        name::SOURCE_RANGES => Some(usage.sources),
        _ => None,
    }
}

/// Reports whether a map contains only written entries; all elements of an array exist.
const fn is_hash(kind: MapType) -> bool {
    matches!(kind, MapType::Hash | MapType::LruHash)
}
