//! Writes services, settings, interfaces and the node's addresses.

use std::os::fd::AsFd as _;
use std::time::Instant;

use aya::maps::MapError;
use aya::maps::lpm_trie::Key;
use lb_common::addr::{Ip, Port};
use lb_common::config::{Device, Settings};
use lb_common::flow::{Affinity, Client};
use lb_common::hash::{self, BackendBytes, EndpointBits};
use lb_common::maps::name;
use lb_common::service::Backend;

use super::copy::mark_all;
use super::error::{Result, batched, named};
use super::filter::elements;
use super::handles::{MapHandle, Maps};
use super::raw::Raw;
use super::walk;
use crate::reconcile::{GRACE, Op};
use crate::syscall;

impl Maps {
    /// Applies one operation; applying it twice has the effect of once.
    pub fn apply(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::PutSettings(settings) => self.put_settings(settings).map_err(named(name::SETTINGS)),
            Op::PutBackend { id, row } => {
                // The filter is written first: without its bit, no packet of the backend would be looked up.
                if row.service != 0 {
                    self.mark(&row.ip, row.port)?;
                }
                self.backends.set(*id, Raw(*row), 0).map_err(named(name::BACKENDS))
            }
            Op::WriteLines { line, lines } => {
                let keys: Vec<u32> = (*line..).take(lines.len()).collect();
                let slots = MapHandle::data(&self.maglev);
                syscall::update_batch(slots.fd().as_fd(), &keys, lines)
                    .map_err(batched(name::MAGLEV))
            }
            Op::PutSource { bits, source } => self
                .source_ranges
                .insert(&Key::new(*bits, Raw(*source)), Raw(1), 0)
                .map_err(named(name::SOURCE_RANGES)),
            // A write that is repeated after a failure may find its entry gone.
            Op::RemoveSource { bits, source } => {
                absent_is_fine(self.source_ranges.remove(&Key::new(*bits, Raw(*source))))
                    .map_err(named(name::SOURCE_RANGES))
            }
            Op::PutService { frontend, service } => self
                .services
                .insert(Raw(*frontend), Raw(*service), 0)
                .map_err(named(name::SERVICES)),
            Op::RemoveService { frontend } => {
                absent_is_fine(self.services.remove(&Raw(*frontend))).map_err(named(name::SERVICES))
            }
            Op::ForgetClients { services } => {
                let known = self.affinities()?.into_iter().map(|(client, _)| client);
                let theirs: Vec<Client> =
                    known.filter(|client| services.contains(&client.service)).collect();
                self.remove_affinities(&theirs)
            }
        }
    }

    /// Removes a client from `AFFINITY`, unless a packet has renewed its entry since `seen` (nanoseconds of
    /// `CLOCK_MONOTONIC`). Returns whether it was removed.
    pub fn remove_affinity(&self, client: &Client, seen: u64) -> Result<bool> {
        let map = self.affinity.data();
        let taken: Option<Raw<Affinity>> =
            walk::take(map, &Raw(*client)).map_err(batched(name::AFFINITY))?;
        let Some(Raw(taken)) = taken else { return Ok(false) };
        // Another time shows that a packet used the entry after it was judged, so the entry is put back below.
        if taken.seen == seen {
            return Ok(true);
        }
        match syscall::update(map.fd().as_fd(), &Raw(*client), &Raw(taken), walk::NO_EXIST) {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                Err(batched(name::AFFINITY)(error))
            }
            Ok(()) | Err(_) => Ok(false),
        }
    }

    /// Removes clients from `AFFINITY`.
    pub fn remove_affinities(&self, clients: &[Client]) -> Result<()> {
        let keys: Vec<Raw<Client>> = clients.iter().copied().map(Raw).collect();
        walk::remove(self.affinity.data(), &keys).map_err(batched(name::AFFINITY))
    }

    /// Writes the slot that is not in use, then switches to it.
    ///
    /// A packet that began before the last switch may still read that slot. If the last switch was within the grace
    /// period, this waits for such packets.
    fn put_settings(&mut self, settings: &Settings) -> std::result::Result<(), MapError> {
        if self.switched.is_some_and(|switched| switched.elapsed() < GRACE) {
            syscall::wait_for_programs();
        }
        let pair = self.settings.get(&0, 0)?.0;
        // There are two writes: the new content, then the switch. A packet reads either the old or the new settings.
        for pair in pair.replaced(*settings) {
            self.settings.set(0, Raw(pair), 0)?;
        }
        self.switched = Some(Instant::now());
        Ok(())
    }

    /// Sets the bit of an address and port in `BACKEND_FILTER`. Bits are never cleared: an extra one only costs a
    /// lookup.
    fn mark(&mut self, ip: &Ip, port: Port) -> Result<()> {
        let bit = hash::endpoint(ip, port);
        let word =
            self.backend_filter.get(&(bit / 64), 0).map_err(named(name::BACKEND_FILTER))?.0.0;
        let marked = word | 1 << (bit % 64);
        // Several endpoints can share one bit, and it may be set by an earlier one.
        if marked == word {
            return Ok(());
        }
        let marked = Raw(EndpointBits(marked));
        self.backend_filter.set(bit / 64, marked, 0).map_err(named(name::BACKEND_FILTER))
    }

    /// Sets the bits of rows of an earlier run where they are missing: the earlier filter may have been lost.
    pub fn mark_endpoints(&mut self, rows: &[Backend]) -> Result<()> {
        // The filter is read in one call, because a system call for each row would take long on large clusters.
        let words: Vec<Raw<EndpointBits>> =
            elements(self.backend_filter.data()).map_err(batched(name::BACKEND_FILTER))?;
        let is_set = |bit: u32| {
            words.get((bit / 64) as usize).is_some_and(|word| word.0.0 & 1 << (bit % 64) != 0)
        };
        let in_use = rows.iter().filter(|row| row.service != 0).map(|row| (row.ip, row.port));
        let missing = in_use.filter(|(ip, port)| !is_set(hash::endpoint(ip, *port)));
        missing.into_iter().try_for_each(|(ip, port)| self.mark(&ip, port))
    }

    /// Reports whether any backend is marked in `IN_USE`. With a flow there is one, unless the map was lost.
    pub fn has_backends_in_use(&self) -> Result<bool> {
        let lines: Vec<Raw<BackendBytes>> =
            elements(self.in_use.data()).map_err(batched(name::IN_USE))?;
        Ok(lines.iter().any(|line| line.0.0.iter().any(|byte| *byte != 0)))
    }

    /// Marks every backend in `IN_USE`, so that each answer is looked up.
    pub fn mark_all_in_use(&self) -> Result<()> {
        mark_all(name::IN_USE, self.in_use.data()).map_err(batched(name::IN_USE))
    }

    /// Writes the entry of an interface in `DEVICES`.
    pub fn put_device(&mut self, index: u32, device: &Device) -> Result<()> {
        self.devices.insert(Raw(index), Raw(*device), 0).map_err(named(name::DEVICES))
    }

    /// Removes the entry of an interface from `DEVICES`.
    pub fn remove_device(&mut self, index: u32) -> Result<()> {
        absent_is_fine(self.devices.remove(&Raw(index))).map_err(named(name::DEVICES))
    }

    /// Writes the bits of one of the node's addresses; 0 removes the address.
    pub fn put_address(&mut self, ip: Ip, bits: u32) -> Result<()> {
        let done = match bits {
            0 => absent_is_fine(self.addresses.remove(&Raw(ip))),
            bits => self.addresses.insert(Raw(ip), Raw(bits), 0),
        };
        done.map_err(named(name::ADDRESSES))
    }
}

/// Accepts that a removed entry did not exist: an operation may be applied twice.
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
