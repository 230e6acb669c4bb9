//! Typed handles to the pinned maps: applies operations (`write`), reads back what is there (`read`, `fill`). Decides
//! nothing.

use std::fmt;
use std::io;
use std::path::Path;
use std::time::Instant;

use aya::Pod;
use aya::maps::{Array, HashMap, IterableMap as _, LpmTrie, MapData, MapError, PerCpuArray};
use lb_common::addr::Ip;
use lb_common::config::{Device, SettingsPair};
use lb_common::flow::{Affinity, Client, Flow, Flow4, FlowKey, FlowKey4, Fragment, Held, Ports};
use lb_common::service::{Backend, Frontend, Line, Service, Source};

mod cost;
mod fill;
mod flows;
mod inherited;
mod kept;
mod look_up;
mod raw;
mod read;
mod shape;
mod walk;
mod write;

pub use flows::Table;
pub use kept::{Kept, kept};
#[cfg(test)]
pub(crate) use raw::FINGERPRINTS;
use raw::Raw;
pub use shape::{SHAPES, Shape, describe};
pub(crate) use walk::copy;

/// Why a map could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not there, not ours, or not allowed.
    #[error("map {map}")]
    Map {
        map: &'static str,
        /// The error of the kernel.
        #[source]
        source: MapError,
    },
    /// A batch was refused.
    #[error("map {map}")]
    Batch {
        map: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, Error>;

fn named(map: &'static str) -> impl Fn(MapError) -> Error + Copy {
    move |source| Error::Map { map, source }
}

/// The value of a lookup, if there is one.
fn found<T>(looked_up: std::result::Result<T, MapError>, map: &'static str) -> Result<Option<T>> {
    match looked_up {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(source) => Err(Error::Map { map, source }),
    }
}

fn batched(map: &'static str) -> impl Fn(io::Error) -> Error + Copy {
    move |source| Error::Batch { map, source }
}

/// The maps of one node.
pub struct Maps {
    services: HashMap<MapData, Raw<Frontend>, Raw<Service>>,
    slots: Array<MapData, Line>,
    backends: Array<MapData, Raw<Backend>>,
    endpoints: Array<MapData, u64>,
    sources: LpmTrie<MapData, Raw<Source>, u32>,
    addresses: HashMap<MapData, Raw<Ip>, u32>,
    devices: HashMap<MapData, u32, Raw<Device>>,
    settings: Array<MapData, Raw<SettingsPair>>,
    /// When the settings were switched last. The switches before this run, it waited for
    /// ([`crate::datapath::Datapath::load`]).
    switched: Option<Instant>,
    counters: PerCpuArray<MapData, u64>,
    flows4: HashMap<MapData, Raw<FlowKey4>, Raw<Flow4>>,
    flows6: HashMap<MapData, Raw<FlowKey>, Raw<Flow>>,
    transient4: HashMap<MapData, Raw<FlowKey4>, Raw<Flow4>>,
    transient6: HashMap<MapData, Raw<FlowKey>, Raw<Flow>>,
    affinity: HashMap<MapData, Raw<Client>, Raw<Affinity>>,
    fragments: HashMap<MapData, Raw<Fragment>, Raw<Ports>>,
    held: HashMap<MapData, Raw<Fragment>, Raw<Held>>,
    inherited: HashMap<MapData, u64, u32>,
    direct: Array<MapData, u64>,
}

/// Opens a pinned map under its name as the type it converts to.
macro_rules! open {
    ($pins:expr, $name:literal, $variant:ident) => {{
        let data = MapData::from_pin($pins.join($name)).map_err(named($name))?;
        aya::maps::Map::$variant(data).try_into().map_err(named($name))?
    }};
}

impl fmt::Debug for Maps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Maps").finish_non_exhaustive()
    }
}

impl Maps {
    /// Opens the maps pinned in a directory.
    pub fn open(pins: &Path) -> Result<Self> {
        Ok(Self {
            services: open!(pins, "SERVICES", HashMap),
            slots: open!(pins, "SLOTS", Array),
            backends: open!(pins, "BACKENDS", Array),
            endpoints: open!(pins, "ENDPOINTS", Array),
            sources: open!(pins, "SOURCES", LpmTrie),
            addresses: open!(pins, "ADDRESSES", HashMap),
            devices: open!(pins, "DEVICES", HashMap),
            settings: open!(pins, "SETTINGS", Array),
            switched: None,
            counters: open!(pins, "COUNTERS", PerCpuArray),
            flows4: open!(pins, "FLOWS4", HashMap),
            flows6: open!(pins, "FLOWS6", HashMap),
            transient4: open!(pins, "TRANSIENT4", LruHashMap),
            transient6: open!(pins, "TRANSIENT6", LruHashMap),
            affinity: open!(pins, "AFFINITY", LruHashMap),
            fragments: open!(pins, "FRAGMENTS", LruHashMap),
            held: open!(pins, "HELD", LruHashMap),
            inherited: open!(pins, "INHERITED", HashMap),
            direct: open!(pins, "DIRECT", Array),
        })
    }
}

/// The untyped map behind a typed one.
trait MapHandle {
    fn data(&self) -> &MapData;
}

macro_rules! handle {
    ($($type:ident<$($parameter:ident),*>)*) => {$(
        impl<$($parameter: Pod),*> MapHandle for $type<MapData, $($parameter),*> {
            fn data(&self) -> &MapData {
                self.map()
            }
        }
    )*};
}

handle! { HashMap<K, V> Array<V> LpmTrie<K, V> PerCpuArray<V> }
