//! Typed handles to the pinned maps: applies operations, reads back what is there. Decides nothing.

use std::fmt;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Instant;

use aya::Pod;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, IterableMap as _, LpmTrie, MapData, MapError, PerCpuArray};
use lb_common::addr::Ip;
use lb_common::config::{Device, Settings, SettingsPair};
use lb_common::flow::{Affinity, Client, Flow, FlowKey, Fragment, Held, Peer, Ports};
use lb_common::hash;
use lb_common::service::{Backend, BackendId, Frontend, Line, Service, Source};

use crate::program::{Actual, GRACE, Limits, Op, Usage};
use crate::syscall;

mod kept;
mod raw;
mod shape;
mod walk;

pub use kept::{Kept, kept};
#[cfg(test)]
pub(crate) use raw::FINGERPRINTS;
use raw::Raw;
pub use shape::{SHAPES, Shape, describe};
use walk::walk;
pub(crate) use walk::{Newer, copy};

/// Why a map could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not there, not ours, or not allowed.
    #[error("map {map}")]
    Map {
        /// Its name.
        map: &'static str,
        /// What the kernel said.
        #[source]
        source: MapError,
    },
    /// A batch was refused.
    #[error("map {map}")]
    Batch {
        /// Its name.
        map: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

type Result<T> = std::result::Result<T, Error>;

fn named(map: &'static str) -> impl Fn(MapError) -> Error + Copy {
    move |source| Error::Map { map, source }
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
    /// When the settings were switched last, by us or, as far as we know, by an earlier run.
    switched: Instant,
    counters: PerCpuArray<MapData, u64>,
    flows: HashMap<MapData, Raw<FlowKey>, Raw<Flow>>,
    affinity: HashMap<MapData, Raw<Client>, Raw<Affinity>>,
    sockets: HashMap<MapData, u64, Raw<Peer>>,
    fragments: HashMap<MapData, Raw<Fragment>, Raw<Ports>>,
    held: HashMap<MapData, u32, Raw<Held>>,
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
    /// Opens the maps pinned in a folder.
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
            switched: Instant::now(),
            counters: open!(pins, "COUNTERS", PerCpuArray),
            flows: open!(pins, "FLOWS", HashMap),
            affinity: open!(pins, "AFFINITY", LruHashMap),
            sockets: open!(pins, "SOCKETS", LruHashMap),
            fragments: open!(pins, "FRAGMENTS", LruHashMap),
            held: open!(pins, "HELD", HashMap),
        })
    }

    /// Applies one operation.
    pub fn apply(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::PutSettings(settings) => self.put_settings(settings).map_err(named("SETTINGS")),
            Op::PutBackend { id, row } => {
                self.mark_endpoint(row)?;
                self.backends.set(*id, Raw(*row), 0).map_err(named("BACKENDS"))
            }
            Op::WriteLines { line, lines } => {
                let keys: Vec<u32> = (*line..).take(lines.len()).collect();
                let slots = MapHandle::data(&self.slots);
                syscall::update_batch(slots.fd().as_fd(), &keys, lines).map_err(batched("SLOTS"))
            }
            Op::PutSource { bits, source } => {
                self.sources.insert(&Key::new(*bits, Raw(*source)), 1, 0).map_err(named("SOURCES"))
            }
            Op::RemoveSource { bits, source } => {
                absent_is_fine(self.sources.remove(&Key::new(*bits, Raw(*source))))
                    .map_err(named("SOURCES"))
            }
            Op::PutService { frontend, service } => {
                self.services.insert(Raw(*frontend), Raw(*service), 0).map_err(named("SERVICES"))
            }
            Op::RemoveService { frontend } => {
                absent_is_fine(self.services.remove(&Raw(*frontend))).map_err(named("SERVICES"))
            }
            Op::ForgetClients { service } => {
                let known = self.affinities()?.into_iter().map(|(client, _)| client);
                for client in known.filter(|client| client.service == *service) {
                    absent_is_fine(self.affinity.remove(&Raw(client)))
                        .map_err(named("AFFINITY"))?;
                }
                Ok(())
            }
        }
    }

    /// Writes the half that is not in use, and switches to it. A packet that began before the last switch may still
    /// read that half: where the last switch was just now, such packets are waited for.
    fn put_settings(&mut self, settings: &Settings) -> std::result::Result<(), MapError> {
        if self.switched.elapsed() < GRACE {
            syscall::wait_for_programs();
        }
        let pair = self.settings.get(&0, 0)?.0;
        for pair in pair.replaced(*settings) {
            self.settings.set(0, Raw(pair), 0)?;
        }
        self.switched = Instant::now();
        Ok(())
    }

    /// Sets the bit of a backend in `ENDPOINTS`. None is ever cleared: one too many costs a look-up.
    fn mark_endpoint(&mut self, row: &Backend) -> Result<()> {
        if row.service == 0 {
            return Ok(());
        }
        let bit = hash::endpoint(&row.ip, row.port);
        let word = self.endpoints.get(&(bit / 64), 0).map_err(named("ENDPOINTS"))?;
        let marked = word | 1 << (bit % 64);
        if marked == word {
            return Ok(());
        }
        self.endpoints.set(bit / 64, marked, 0).map_err(named("ENDPOINTS"))
    }

    /// How much the maps that the agent fills can hold.
    pub fn limits(&self) -> Result<Limits> {
        Ok(Limits {
            services: capacity(&self.services, "SERVICES")?,
            backends: capacity(&self.backends, "BACKENDS")?,
            lines: capacity(&self.slots, "SLOTS")?,
            sources: capacity(&self.sources, "SOURCES")?,
        })
    }

    /// Everything the agent once wrote.
    pub fn actual(&self) -> Result<Actual> {
        let services = self.services()?;
        let lines = Actual::lines_in_use(&services);
        Ok(Actual {
            lines: self.lines(lines)?,
            backends: self.backends()?,
            sources: self.sources()?,
            settings: self.settings()?,
            services,
        })
    }

    /// `SERVICES`, sorted.
    pub fn services(&self) -> Result<Vec<(Frontend, Service)>> {
        let mut all =
            entries(&self.services, "SERVICES", |key: &Raw<Frontend>, value: &Raw<Service>| {
                (key.0, value.0)
            })?;
        all.sort_by_key(|(frontend, _)| *frontend);
        Ok(all)
    }

    /// One entry of `SERVICES`, if it is there.
    pub fn service(&self, frontend: &Frontend) -> Result<Option<Service>> {
        match self.services.get(&Raw(*frontend), 0) {
            Ok(service) => Ok(Some(service.0)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(Error::Map { map: "SERVICES", source }),
        }
    }

    /// `BACKENDS` from row 0 to the last that was ever used.
    pub fn backends(&self) -> Result<Vec<Backend>> {
        let mut rows = Vec::new();
        walk(self.backends.data(), (0_u32, Raw::<Backend>::default()), |id, row| {
            // The rest of the map is empty, and may be megabytes.
            if row.0.epoch != 0 {
                rows.resize(*id as usize, Backend::default());
                rows.push(row.0);
            }
            true
        })
        .map_err(batched("BACKENDS"))?;
        Ok(rows)
    }

    /// The epochs of the first rows of `BACKENDS`.
    pub fn epochs(&self, rows: usize) -> Result<Vec<u32>> {
        let mut epochs = Vec::with_capacity(rows);
        walk(self.backends.data(), (0_u32, Raw::<Backend>::default()), |_, row| {
            epochs.push(row.0.epoch);
            epochs.len() < rows
        })
        .map_err(batched("BACKENDS"))?;
        epochs.truncate(rows);
        Ok(epochs)
    }

    /// One row of `BACKENDS`.
    pub fn backend(&self, id: BackendId) -> Result<Backend> {
        self.backends.get(&id, 0).map(|row| row.0).map_err(named("BACKENDS"))
    }

    /// The first lines of `SLOTS`.
    pub fn lines(&self, count: u32) -> Result<Vec<Line>> {
        let mut lines: Vec<Line> = Vec::with_capacity(count as usize);
        let count = count as usize;
        walk(self.slots.data(), (0_u32, [0_u8; 64]), |_, line| {
            lines.push(*line);
            lines.len() < count
        })
        .map_err(batched("SLOTS"))?;
        lines.truncate(count);
        Ok(lines)
    }

    /// `SOURCES`.
    pub fn sources(&self) -> Result<Vec<(u32, Source)>> {
        let entry = |entry: std::result::Result<(Key<Raw<Source>>, u32), MapError>| {
            let (key, _) = entry.map_err(named("SOURCES"))?;
            Ok((key.prefix_len(), key.data().0))
        };
        self.sources.iter().map(entry).collect()
    }

    /// The half of `SETTINGS` in use.
    pub fn settings(&self) -> Result<Settings> {
        self.settings.get(&0, 0).map(|pair| *pair.0.in_use()).map_err(named("SETTINGS"))
    }

    /// `DEVICES`.
    pub fn devices(&self) -> Result<Vec<(u32, Device)>> {
        entries(&self.devices, "DEVICES", |index: &u32, device: &Raw<Device>| (*index, device.0))
    }

    /// Sets what the programs know of a device.
    pub fn put_device(&mut self, index: u32, device: &Device) -> Result<()> {
        self.devices.insert(index, Raw(*device), 0).map_err(named("DEVICES"))
    }

    /// Forgets a device.
    pub fn remove_device(&mut self, index: u32) -> Result<()> {
        absent_is_fine(self.devices.remove(&index)).map_err(named("DEVICES"))
    }

    /// `ADDRESSES`.
    pub fn addresses(&self) -> Result<Vec<(Ip, u32)>> {
        entries(&self.addresses, "ADDRESSES", |ip: &Raw<Ip>, bits: &u32| (ip.0, *bits))
    }

    /// Sets the bits of one of the node's addresses; 0 forgets it.
    pub fn put_address(&mut self, ip: Ip, bits: u32) -> Result<()> {
        let done = match bits {
            0 => absent_is_fine(self.addresses.remove(&Raw(ip))),
            bits => self.addresses.insert(Raw(ip), bits, 0),
        };
        done.map_err(named("ADDRESSES"))
    }

    /// `COUNTERS`, summed over the CPUs, in the order of `lb_common::event`.
    pub fn counters(&self) -> Result<Vec<u64>> {
        let sum = |index: u32| {
            let values = self.counters.get(&index, 0).map_err(named("COUNTERS"))?;
            Ok(values.iter().fold(0_u64, |sum, value| sum.wrapping_add(*value)))
        };
        (0..lb_common::event::COUNTERS).map(sum).collect()
    }

    /// `AFFINITY`.
    pub fn affinities(&self) -> Result<Vec<(Client, Affinity)>> {
        entries(&self.affinity, "AFFINITY", |client: &Raw<Client>, affinity: &Raw<Affinity>| {
            (client.0, affinity.0)
        })
    }

    /// Calls `see` for every half of a flow.
    pub fn flows(&self, mut see: impl FnMut(&FlowKey, &Flow)) -> Result<()> {
        let zero = (Raw::default(), Raw::default());
        walk(self.flows.data(), zero, |key: &Raw<FlowKey>, flow: &Raw<Flow>| {
            see(&key.0, &flow.0);
            true
        })
        .map_err(batched("FLOWS"))
    }

    /// How many halves of flows there can be.
    pub fn flow_capacity(&self) -> Result<u32> {
        capacity(&self.flows, "FLOWS")
    }

    /// One half, if it is still there.
    pub fn flow(&self, key: &FlowKey) -> Result<Option<Flow>> {
        match self.flows.get(&Raw(*key), 0) {
            Ok(flow) => Ok(Some(flow.0)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(Error::Map { map: "FLOWS", source }),
        }
    }

    /// What the socket hooks know of a connected socket, by its cookie.
    pub fn socket(&self, cookie: u64) -> Result<Option<Peer>> {
        match self.sockets.get(&cookie, 0) {
            Ok(peer) => Ok(Some(peer.0)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(source) => Err(Error::Map { map: "SOCKETS", source }),
        }
    }

    /// Removes halves of flows.
    pub fn remove_flows(&self, keys: &[FlowKey]) -> Result<()> {
        let keys: Vec<Raw<FlowKey>> = keys.iter().map(|key| Raw(*key)).collect();
        walk::remove(self.flows.data(), &keys).map_err(batched("FLOWS"))
    }

    /// Name, entries and capacity of every map that can fill up. Walks them: not for every second.
    pub fn fill(&self) -> Result<Vec<(&'static str, usize, u32)>> {
        self.fill_beside(&Usage {
            services: self.services()?.len(),
            backends: self.backends_in_use()?,
            lines: self.lines_in_use()?,
            sources: self.sources()?.len(),
        })
    }

    /// The same where the entries of the maps that the agent fills are known: its largest are not read.
    pub fn fill_beside(&self, usage: &Usage) -> Result<Vec<(&'static str, usize, u32)>> {
        Ok(vec![
            ("SERVICES", usage.services, capacity(&self.services, "SERVICES")?),
            fill::<_, Raw<FlowKey>, Raw<Flow>>(&self.flows, "FLOWS")?,
            fill::<_, Raw<Client>, Raw<Affinity>>(&self.affinity, "AFFINITY")?,
            fill::<_, Raw<Ip>, u32>(&self.addresses, "ADDRESSES")?,
            fill::<_, u32, Raw<Device>>(&self.devices, "DEVICES")?,
            fill::<_, u64, Raw<Peer>>(&self.sockets, "SOCKETS")?,
            fill::<_, Raw<Fragment>, Raw<Ports>>(&self.fragments, "FRAGMENTS")?,
            fill::<_, u32, Raw<Held>>(&self.held, "HELD")?,
            ("BACKENDS", usage.backends, capacity(&self.backends, "BACKENDS")?),
            ("SOURCES", usage.sources, capacity(&self.sources, "SOURCES")?),
            ("SLOTS", usage.lines, capacity(&self.slots, "SLOTS")?),
        ])
    }

    fn backends_in_use(&self) -> Result<usize> {
        Ok(self.backends()?.iter().filter(|row| row.service != 0).count())
    }

    fn lines_in_use(&self) -> Result<usize> {
        let services = self.services()?;
        let sets = services.iter().flat_map(|(_, service)| [service.cluster, service.local]);
        let sets: std::collections::BTreeMap<u32, u32> =
            sets.filter(|set| set.members > 0).map(|set| (set.line, set.lines())).collect();
        Ok(sets.values().sum::<u32>() as usize)
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

fn capacity(map: &impl MapHandle, name: &'static str) -> Result<u32> {
    map.data().info().map(|info| info.max_entries()).map_err(named(name))
}

fn fill<M: MapHandle, K: Pod + Default, V: Pod + Default>(
    map: &M,
    name: &'static str,
) -> Result<(&'static str, usize, u32)> {
    let count = walk::count(map.data(), (K::default(), V::default())).map_err(batched(name))?;
    Ok((name, count, capacity(map, name)?))
}

fn entries<M: MapHandle, K: Pod + Default, V: Pod + Default, T>(
    map: &M,
    name: &'static str,
    entry: impl Fn(&K, &V) -> T,
) -> Result<Vec<T>> {
    let mut all = Vec::new();
    walk(map.data(), (K::default(), V::default()), |key, value| {
        all.push(entry(key, value));
        true
    })
    .map_err(batched(name))?;
    Ok(all)
}

/// Removing what is not there is no error: an operation may be applied twice.
fn absent_is_fine(result: std::result::Result<(), MapError>) -> std::result::Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(libc::ENOENT) =>
        {
            Ok(())
        }
        other => other,
    }
}
