//! Reads and changes the entries of flows while packets write them too.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::{AsFd as _, BorrowedFd};

use aya::maps::{HashMap, MapData};
use lb_common::flow::{Flow, Flow4, FlowKey, FlowKey4};
use lb_common::maps::name;

use super::error::{Error, Result, batched, found};
use super::fill::capacity;
use super::handles::{MapHandle as _, Maps};
use super::raw::Raw;
use super::walk;
use crate::syscall;

/// The two kinds of tables; each has one map for IPv4 and one for IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// `FLOWS4` and `FLOWS6`: flows whose two ends have both spoken.
    Protected,
    /// `TRANSIENT4` and `TRANSIENT6`: all other flows, and older copies of protected entries.
    Transient,
}

/// The handle to a table's IPv4 map.
type Map4 = HashMap<MapData, Raw<FlowKey4>, Raw<Flow4>>;
/// The handle to a table's IPv6 map.
type Map6 = HashMap<MapData, Raw<FlowKey>, Raw<Flow>>;

/// The two maps of a table, for IPv4 and for IPv6, and their names.
type MapPair<'a> = (&'a Map4, &'a Map6, [&'static str; 2]);

/// Handles of the four maps in which an entry may be: two tables, each with a map for IPv4 and one for IPv6.
#[derive(Clone, Copy)]
pub struct FlowMaps<'a> {
    protected: MapPair<'a>,
    transient: MapPair<'a>,
}

impl fmt::Debug for FlowMaps<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowMaps").finish_non_exhaustive()
    }
}

impl Maps {
    /// Returns the maps of flows.
    pub const fn flows(&self) -> FlowMaps<'_> {
        FlowMaps {
            protected: (&self.flows4, &self.flows6, [name::FLOWS4, name::FLOWS6]),
            transient: (&self.transient4, &self.transient6, [name::TRANSIENT4, name::TRANSIENT6]),
        }
    }
}

impl FlowMaps<'_> {
    const fn of(&self, table: Table) -> &MapPair<'_> {
        match table {
            Table::Protected => &self.protected,
            Table::Transient => &self.transient,
        }
    }

    /// Returns the maximum number of protected entries: for IPv4, then for IPv6.
    pub fn capacities(&self) -> Result<[u32; 2]> {
        let (map4, map6, [name4, name6]) = self.protected;
        Ok([capacity(map4, name4)?, capacity(map6, name6)?])
    }

    /// Reports whether there is any flow. Entries of connections of the node do not count.
    pub fn exist(&self) -> Result<bool> {
        let mut found = false;
        for table in [Table::Protected, Table::Transient] {
            self.walk_while(table, |_, flow| {
                found |= flow.is_forward();
                !found
            })?;
        }
        Ok(found)
    }

    /// Calls `see` for every entry of a table.
    pub fn walk(&self, table: Table, mut see: impl FnMut(&FlowKey, &Flow)) -> Result<()> {
        self.walk_while(table, |key, flow| {
            see(key, flow);
            true
        })
    }

    /// Calls `see` for the entries of a table until it returns false.
    fn walk_while(&self, table: Table, mut see: impl FnMut(&FlowKey, &Flow) -> bool) -> Result<()> {
        let (map4, map6, [name4, name6]) = *self.of(table);
        let (zero, mut goes_on) = ((Raw::default(), Raw::default()), true);
        let walked = walk::walk(map4.data(), zero, |key: &Raw<FlowKey4>, flow| {
            let flow: &Raw<Flow4> = flow;
            goes_on = see(&key.0.whole(), &flow.0.whole());
            goes_on
        });
        walked.map_err(batched(name4))?;
        if !goes_on {
            return Ok(());
        }
        let zero = (Raw::default(), Raw::default());
        let walked = walk::walk(map6.data(), zero, |key: &Raw<FlowKey>, flow| {
            let flow: &Raw<Flow> = flow;
            see(&key.0, &flow.0)
        });
        walked.map_err(batched(name6))
    }

    /// Calls `see` for every entry that `is_meant` selects, as packets find it, until `see` fails. There may be a
    /// million entries, so only a hash of each key is kept.
    pub fn each<E: From<Error>>(
        &self,
        is_meant: impl Fn(&FlowKey, &Flow) -> bool,
        mut see: impl FnMut(&FlowKey, &Flow) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let (hasher, mut seen) = (RandomState::new(), HashSet::new());
        let mut outcome = Ok(());
        self.walk_while(Table::Protected, |key, flow| {
            if is_meant(key, flow) && seen.insert(hasher.hash_one(key)) {
                outcome = see(key, flow);
            }
            outcome.is_ok()
        })?;
        outcome?;
        // A transient entry may be an older copy of a protected one. An entry that became protected after that table
        // was read must not be missed.
        let mut outcome = Ok(());
        let mut see_transient = |key: &FlowKey, flow: &Flow| {
            if !is_meant(key, flow) || seen.contains(&hasher.hash_one(key)) {
                return Ok(());
            }
            let flow = self.get_in(Table::Protected, key)?.unwrap_or(*flow);
            if is_meant(key, &flow) { see(key, &flow) } else { Ok(()) }
        };
        self.walk_while(Table::Transient, |key, flow| {
            outcome = see_transient(key, flow);
            outcome.is_ok()
        })?;
        outcome
    }

    /// Returns every entry as packets find it.
    pub fn all(&self) -> Result<Vec<(FlowKey, Flow)>> {
        let mut all = Vec::new();
        self.each(
            |_, _| true,
            |key, flow| {
                all.push((*key, *flow));
                Ok::<(), Error>(())
            },
        )?;
        Ok(all)
    }

    /// Returns an entry as packets find it, if it exists.
    pub fn get(&self, key: &FlowKey) -> Result<Option<Flow>> {
        match self.get_in(Table::Protected, key)? {
            None => self.get_in(Table::Transient, key),
            flow => Ok(flow),
        }
    }

    /// Returns the entry of the other direction of an entry's flow, if it exists. `None` also if another flow has its
    /// place.
    pub fn opposite(&self, key: &FlowKey, flow: &Flow) -> Result<Option<Flow>> {
        let opposite = key.opposite(flow);
        Ok(self.get(&opposite)?.filter(|flow| key.has_opposite(&opposite, flow)))
    }

    fn get_in(&self, table: Table, key: &FlowKey) -> Result<Option<Flow>> {
        let (map4, map6, [name4, name6]) = *self.of(table);
        if key.is_v4() {
            let flow = found(map4.get(&Raw(FlowKey4::of(key)), 0), name4)?;
            Ok(flow.map(|flow| flow.0.whole()))
        } else {
            Ok(found(map6.get(&Raw(*key), 0), name6)?.map(|flow| flow.0))
        }
    }

    /// Removes a protected entry, and returns its value at that moment; `None` if it does not exist.
    pub fn take(&self, key: &FlowKey) -> Result<Option<Flow>> {
        self.take_from(Table::Protected, key)
    }

    /// Removes the transient copy of an entry that was protected, unless a packet has renewed it since `seen`
    /// (nanoseconds of `CLOCK_MONOTONIC`, as [`Flow::seen`]).
    pub fn take_copy(&self, key: &FlowKey, seen: u64) -> Result<()> {
        let is_copy = |flow: &Flow| flow.seen <= seen;
        if !self.get_in(Table::Transient, key)?.is_some_and(|flow| is_copy(&flow)) {
            return Ok(());
        }
        match self.take_from(Table::Transient, key)? {
            Some(renewed) if !is_copy(&renewed) => self.restore(key, &renewed),
            Some(_) | None => Ok(()),
        }
    }

    fn take_from(&self, table: Table, key: &FlowKey) -> Result<Option<Flow>> {
        let (map4, map6, [name4, name6]) = *self.of(table);
        if key.is_v4() {
            let key = Raw(FlowKey4::of(key));
            let flow = walk::take(map4.data(), &key).map_err(batched(name4))?;
            return Ok(flow.map(|flow: Raw<Flow4>| flow.0.whole()));
        }
        let flow = walk::take(map6.data(), &Raw(*key)).map_err(batched(name6))?;
        Ok(flow.map(|flow: Raw<Flow>| flow.0))
    }

    /// Removes an entry from both kinds of tables, unless a packet has renewed it since it was read.
    pub fn forget(&self, key: &FlowKey, read: &Flow) -> Result<()> {
        if let Some(taken) = self.take(key)?
            && taken != *read
        {
            return self.restore(key, &taken);
        }
        self.take_copy(key, read.seen)
    }

    /// Restores an entry that was removed, unless a packet has recreated it, or the map has become full.
    pub fn restore(&self, key: &FlowKey, flow: &Flow) -> Result<()> {
        self.write(key, flow, walk::NO_EXIST, &[libc::EEXIST, libc::E2BIG])
    }

    /// Overwrites an entry, if it exists, in the table that its value belongs to.
    pub fn replace(&self, key: &FlowKey, flow: &Flow) -> Result<()> {
        self.write(key, flow, walk::EXIST, &[libc::ENOENT])
    }

    /// Removes entries from both kinds of tables.
    pub fn remove(&self, keys: &[FlowKey]) -> Result<()> {
        let (v4, v6): (Vec<FlowKey>, Vec<FlowKey>) = keys.iter().partition(|key| key.is_v4());
        let v4: Vec<Raw<FlowKey4>> = v4.iter().map(|key| Raw(FlowKey4::of(key))).collect();
        let v6: Vec<Raw<FlowKey>> = v6.into_iter().map(Raw).collect();
        // Transient entries are deleted first: between the passes packets still find the protected entry. With the
        // older transient copy they would protect the flow again, beside a reply that is about to be removed.
        for table in [Table::Transient, Table::Protected] {
            let (map4, map6, [name4, name6]) = *self.of(table);
            walk::remove(map4.data(), &v4).map_err(batched(name4))?;
            walk::remove(map6.data(), &v6).map_err(batched(name6))?;
        }
        Ok(())
    }

    fn write(&self, key: &FlowKey, flow: &Flow, flags: u64, fine: &[i32]) -> Result<()> {
        let table = if flow.is_protected() { Table::Protected } else { Table::Transient };
        let (map4, map6, [name4, name6]) = *self.of(table);
        let (name, written) = if key.is_v4() {
            let fd: BorrowedFd<'_> = map4.data().fd().as_fd();
            let (key, flow) = (Raw(FlowKey4::of(key)), Raw(Flow4::of(flow)));
            (name4, syscall::update(fd, &key, &flow, flags))
        } else {
            let fd = map6.data().fd().as_fd();
            (name6, syscall::update(fd, &Raw(*key), &Raw(*flow), flags))
        };
        match written {
            Err(error) if !error.raw_os_error().is_some_and(|code| fine.contains(&code)) => {
                Err(batched(name)(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
