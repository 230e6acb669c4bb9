//! Reads whole maps as types of `lb-common`.

use aya::Pod;
use aya::maps::MapError;
use aya::maps::lpm_trie::Key;
use lb_common::addr::Ip;
use lb_common::config::{Device, Settings};
use lb_common::flow::{Affinity, Client};
use lb_common::maps::name;
use lb_common::service::{Backend, BackendId, Frontend, Line, Service, Source};

use super::error::{Result, batched, found, named};
use super::handles::{MapHandle, Maps};
use super::raw::Raw;
use super::walk::walk;
use crate::reconcile::Actual;

impl Maps {
    /// Returns everything that the agent wrote into the maps.
    pub fn actual(&self) -> Result<Actual> {
        // Services are read first, because they show how many lines are in use.
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

    /// Returns `SERVICES`, sorted by frontend.
    pub fn services(&self) -> Result<Vec<(Frontend, Service)>> {
        let mut all = entries(
            &self.services,
            name::SERVICES,
            |key: &Raw<Frontend>, value: &Raw<Service>| (key.0, value.0),
        )?;
        all.sort_by_key(|(frontend, _)| *frontend);
        Ok(all)
    }

    /// Returns an entry of `SERVICES`, if it exists.
    pub fn service(&self, frontend: &Frontend) -> Result<Option<Service>> {
        let service = found(self.services.get(&Raw(*frontend), 0), name::SERVICES)?;
        Ok(service.map(|service| service.0))
    }

    /// Returns `BACKENDS` from row 0 to the last row that was ever used.
    pub fn backends(&self) -> Result<Vec<Backend>> {
        let mut rows = Vec::new();
        walk(self.backends.data(), (0_u32, Raw::<Backend>::default()), |id, row| {
            // The rest of the map is unused, and may be megabytes.
            if row.0.epoch != 0 {
                rows.resize(*id as usize, Backend::default());
                rows.push(row.0);
            }
            true
        })
        .map_err(batched(name::BACKENDS))?;
        Ok(rows)
    }

    /// Returns a row of `BACKENDS`.
    pub fn backend(&self, id: BackendId) -> Result<Backend> {
        self.backends.get(&id, 0).map(|row| row.0).map_err(named(name::BACKENDS))
    }

    /// Returns the first `count` lines of `MAGLEV`.
    pub fn lines(&self, count: u32) -> Result<Vec<Line>> {
        let mut lines: Vec<Line> = Vec::with_capacity(count as usize);
        let count = count as usize;
        walk(self.maglev.data(), (0_u32, [0_u8; 64]), |_, line| {
            lines.push(*line);
            lines.len() < count
        })
        .map_err(batched(name::MAGLEV))?;
        // With a count of 0, the walk has already returned one line.
        lines.truncate(count);
        Ok(lines)
    }

    pub fn sources(&self) -> Result<Vec<(u32, Source)>> {
        let entry = |entry: std::result::Result<(Key<Raw<Source>>, Raw<u32>), MapError>| {
            let (key, _) = entry.map_err(named(name::SOURCE_RANGES))?;
            Ok((key.prefix_len(), key.data().0))
        };
        self.source_ranges.iter().map(entry).collect()
    }

    /// Returns the slot of `SETTINGS` that is in use.
    pub fn settings(&self) -> Result<Settings> {
        self.settings.get(&0, 0).map(|pair| *pair.0.in_use()).map_err(named(name::SETTINGS))
    }

    pub fn devices(&self) -> Result<Vec<(u32, Device)>> {
        entries(&self.devices, name::DEVICES, |index: &Raw<u32>, device: &Raw<Device>| {
            (index.0, device.0)
        })
    }

    pub fn addresses(&self) -> Result<Vec<(Ip, u32)>> {
        entries(&self.addresses, name::ADDRESSES, |ip: &Raw<Ip>, bits: &Raw<u32>| (ip.0, bits.0))
    }

    /// Returns `COUNTERS`, summed over the CPUs, in the order of `lb_common::event`.
    pub fn counters(&self) -> Result<Vec<u64>> {
        let sum = |index: u32| {
            let values = self.counters.get(&index, 0).map_err(named(name::COUNTERS))?;
            // Each CPU has a value of its own, so that packets need no atomic addition.
            Ok(values.iter().fold(0_u64, |sum, value| sum.wrapping_add(value.0)))
        };
        (0..lb_common::event::COUNTERS).map(sum).collect()
    }

    pub fn affinities(&self) -> Result<Vec<(Client, Affinity)>> {
        entries(&self.affinity, name::AFFINITY, |client: &Raw<Client>, affinity: &Raw<Affinity>| {
            (client.0, affinity.0)
        })
    }
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
