//! Lookups of single elements by key, as the programs do them.

use std::os::fd::AsFd as _;
use std::time::Duration;

use aya::maps::lpm_trie::Key;
use lb_common::addr::Ip;
use lb_common::config::Device;
use lb_common::flow::{Affinity, Client, DIRECT_SEEN, Flow};
use lb_common::maps::name;
use lb_common::service::{Line, Source};

use super::error::{Result, batched, found, named};
use super::handles::{MapHandle as _, Maps};
use super::raw::Raw;
use crate::syscall;

impl Maps {
    /// Returns a line of `MAGLEV`; `None` beyond the end of the map.
    pub fn line(&self, line: u32) -> Result<Option<Line>> {
        if line >= self.maglev.len() {
            return Ok(None);
        }
        self.maglev.get(&line, 0).map(|line| Some(line.0)).map_err(named(name::MAGLEV))
    }

    /// Reports whether a source is in a prefix that `SOURCE_RANGES` allows for its service.
    pub fn allows(&self, source: &Source) -> Result<bool> {
        let key = Key::new(Source::BITS, Raw(*source));
        Ok(found(self.source_ranges.get(&key, 0), name::SOURCE_RANGES)?.is_some())
    }

    /// Returns the bits of an address in `ADDRESSES`.
    pub fn address(&self, ip: &Ip) -> Result<Option<u32>> {
        Ok(found(self.addresses.get(&Raw(*ip), 0), name::ADDRESSES)?.map(|bits| bits.0))
    }

    /// Returns the entry of an interface in `DEVICES`.
    pub fn device(&self, index: u32) -> Result<Option<Device>> {
        Ok(found(self.devices.get(&Raw(index), 0), name::DEVICES)?.map(|device| device.0))
    }

    /// Returns the backend that a client is sent to again.
    pub fn affinity(&self, client: &Client) -> Result<Option<Affinity>> {
        Ok(found(self.affinity.get(&Raw(*client), 0), name::AFFINITY)?.map(|affinity| affinity.0))
    }

    /// Reports whether `DIRECT_SEEN` has the hash ([`lb_common::hash::whole`]) of a packet that was sent straight to a
    /// backend.
    pub fn is_direct(&self, hash: u64) -> Result<bool> {
        let known = self
            .direct_seen
            .get(&(hash as u32 % DIRECT_SEEN), 0)
            .map_err(named(name::DIRECT_SEEN))?;
        // The index has few bits, so the whole hash is compared.
        Ok(known.0 == hash)
    }

    /// Returns the moment that `OWN_ANSWERS` has for this hash: then the packet answers a connection that this node
    /// began.
    pub fn own_answer(&self, hash: u64) -> Result<Option<u32>> {
        Ok(found(self.own_answers.get(&Raw(hash), 0), name::OWN_ANSWERS)?.map(|moment| moment.0))
    }

    /// Adds hashes to `OWN_ANSWERS`, as seen at a time of `CLOCK_MONOTONIC`; the least recently used ones make room.
    pub fn record_own_answers(&self, hashes: &[u64], now: Duration) -> Result<()> {
        let moment = Flow::moment(now.as_nanos() as u64);
        let values = vec![moment; hashes.len()];
        let written = syscall::update_batch(self.own_answers.data().fd().as_fd(), hashes, &values);
        written.map_err(batched(name::OWN_ANSWERS))
    }

    /// Reports whether `INHERITED` has the hash of a tuple: netfilter translates its datagrams or their answers.
    pub fn is_inherited(&self, hash: u64) -> Result<bool> {
        Ok(found(self.inherited.get(&Raw(hash), 0), name::INHERITED)?.is_some())
    }
}
