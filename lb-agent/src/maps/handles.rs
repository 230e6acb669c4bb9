//! Typed handles to the pinned maps, one for each line of the list in `lb_common::maps`.

use std::fmt;
use std::path::Path;
use std::time::Instant;

use aya::Pod;
use aya::maps::{Array, HashMap, IterableMap as _, LpmTrie, Map, MapData, PerCpuArray};

use super::error::{Result, named};
use super::raw::Raw;

/// Returns the type of a handle, by the kind of its map.
macro_rules! handle {
    (Hash<$key:ty, $value:ty>) => { HashMap<MapData, Raw<$key>, Raw<$value>> };
    (LruHash<$key:ty, $value:ty>) => { HashMap<MapData, Raw<$key>, Raw<$value>> };
    (LpmTrie<$key:ty, $value:ty>) => { LpmTrie<MapData, Raw<$key>, Raw<$value>> };
    (Array<$key:ty, $value:ty>) => { Array<MapData, Raw<$value>> };
    (PerCpuArray<$key:ty, $value:ty>) => { PerCpuArray<MapData, Raw<$value>> };
}

/// Returns the variant of [`Map`], by the kind of a map.
macro_rules! variant {
    (Hash) => {
        Map::HashMap
    };
    (LruHash) => {
        Map::LruHashMap
    };
    ($kind:ident) => {
        Map::$kind
    };
}

macro_rules! handles {
    ($($name:ident($field:ident): $kind:ident<$key:ty, $value:ty>, $entries:expr,
        $content:ident by $author:ident, $holds:literal;)*) => {
        /// Handles to all maps of one node.
        pub struct Maps {
            $(
                #[doc = $holds]
                pub(super) $field: handle!($kind<$key, $value>),
            )*
            /// Time when the settings were last switched. [`crate::datapath::Datapath::load`] has waited for switches
            /// of earlier runs.
            pub(super) switched: Option<Instant>,
        }

        impl Maps {
            /// Opens the maps pinned in a directory.
            pub fn open(pins: &Path) -> Result<Self> {
                Ok(Self {
                    $($field: {
                        let data = open(pins, stringify!($name))?;
                        variant!($kind)(data).try_into().map_err(named(stringify!($name)))?
                    },)*
                    switched: None,
                })
            }
        }
    };
}

lb_common::maps!(handles);

fn open(pins: &Path, name: &'static str) -> Result<MapData> {
    MapData::from_pin(pins.join(name)).map_err(named(name))
}

impl fmt::Debug for Maps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Maps").finish_non_exhaustive()
    }
}

/// Gives access to the untyped map behind a typed handle.
pub(super) trait MapHandle {
    fn data(&self) -> &MapData;
}

macro_rules! untyped {
    ($($type:ident<$($parameter:ident),*>)*) => {$(
        impl<$($parameter: Pod),*> MapHandle for $type<MapData, $($parameter),*> {
            fn data(&self) -> &MapData {
                self.map()
            }
        }
    )*};
}

untyped! { HashMap<K, V> Array<V> LpmTrie<K, V> PerCpuArray<V> }
