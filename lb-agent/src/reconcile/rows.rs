//! The rows of `BACKENDS`: their endpoints, and the epochs by which flows learn that their backend is gone.
//!
//! A row that loses its endpoint keeps the address for a grace period, because a packet may still choose it from the
//! old set. It gets a new epoch at once, which ends the flows that remember the old one. Then it is cleared.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use lb_common::addr::Ip;
use lb_common::config::Prefix;
use lb_common::service::{Backend, BackendId};

use super::Op;

/// A mirror of `BACKENDS`.
#[derive(Debug)]
pub(super) struct Rows {
    limit: u32,
    mirror: Vec<Backend>,
    free: BTreeSet<BackendId>,
    retired: VecDeque<(Duration, BackendId)>,
}

impl Rows {
    /// Makes the mirror from the content of the map, row 0 first. Rows without a service are free.
    pub(super) fn new(limit: u32, mut rows: Vec<Backend>) -> Self {
        rows.truncate(limit as usize);
        if rows.is_empty() {
            // Row 0 means "no backend" and is never given out.
            rows.push(Backend::default());
        }
        let ids = (0_u32..).zip(&rows).skip(1);
        let free = ids.filter(|(_, row)| row.service == 0).map(|(id, _)| id).collect();
        Self { limit, mirror: rows, free, retired: VecDeque::new() }
    }

    /// Returns the number of rows that can be taken now.
    pub(super) fn free(&self) -> usize {
        self.free.len() + (self.limit as usize).saturating_sub(self.mirror.len())
    }

    /// Returns the number of rows with an endpoint, those in their grace period included.
    pub(super) fn used(&self) -> usize {
        self.mirror.len() - 1 - self.free.len()
    }

    /// Reports whether the endpoints confirm that `pods` is the prefix of pods: some endpoint is inside, and none of
    /// this node is outside, except at its own addresses (`is_own`).
    ///
    /// A CNI may use other ranges than those in the Node objects.
    pub(super) fn confirm(&self, pods: &Prefix, is_own: impl Fn(&Ip) -> bool) -> bool {
        if !pods.is_set() {
            return false;
        }
        let same_family = |row: &&Backend| row.service != 0 && row.ip.is_v4() == pods.ip.is_v4();
        let mut is_confirmed = false;
        for row in self.mirror.iter().filter(same_family) {
            if pods.contains(&row.ip) {
                is_confirmed = true;
            } else if row.flags & Backend::LOCAL != 0 && !is_own(&row.ip) {
                return false;
            }
        }
        is_confirmed
    }

    /// Returns those of the addresses that belong to live endpoints.
    pub(super) fn live_among(&self, addresses: &BTreeSet<Ip>) -> BTreeSet<Ip> {
        let live = self.mirror.iter().filter(|row| row.service != 0);
        live.map(|row| row.ip).filter(|ip| addresses.contains(ip)).collect()
    }

    /// Returns a row as it was last written.
    pub(super) fn get(&self, id: BackendId) -> Backend {
        self.mirror.get(id as usize).copied().unwrap_or_default()
    }

    /// Gives `backend` a row with a new epoch. Returns 0 without a free row, so check [`Rows::free`] first.
    pub(super) fn take(&mut self, backend: Backend, ops: &mut Vec<Op>) -> BackendId {
        // The lowest free row is taken, so that the used part of the map stays short.
        let id = match self.free.pop_first() {
            Some(id) => id,
            None if self.free() > 0 => {
                self.mirror.push(Backend::default());
                self.mirror.len() as u32 - 1
            }
            None => return 0,
        };
        // The row gets a new epoch, so that flows and affinities of the old backend do not reach the new one.
        let epoch = next(self.get(id).epoch);
        self.put(id, Backend { epoch, ..backend }, ops);
        id
    }

    /// Changes the flags of a row, if they differ.
    pub(super) fn set_flags(&mut self, id: BackendId, flags: u16, ops: &mut Vec<Op>) {
        let row = self.get(id);
        if row.flags != flags {
            self.put(id, Backend { flags, ..row }, ops);
        }
    }

    /// Ends the endpoint of a row. Its flows end now, and the row is free at `due`.
    pub(super) fn retire(&mut self, id: BackendId, due: Duration, ops: &mut Vec<Op>) {
        let row = self.get(id);
        // A packet may still choose the row from the old set, and record it for its client with the new epoch. Without
        // the bits of its sets no later packet of that client is sent there (`Backend::IN_CLUSTER_SET`).
        self.put(id, Backend { epoch: next(row.epoch), flags: 0, ..row }, ops);
        self.retired.push_back((due, id));
    }

    /// Clears the rows that are due. Returns whether there were any.
    pub(super) fn release(&mut self, now: Duration, ops: &mut Vec<Op>) -> bool {
        let mut any = false;
        while let Some((due, id)) = self.retired.front().copied()
            && due <= now
        {
            self.retired.pop_front();
            // A packet may have chosen the row from the old set after it was retired. Another epoch ends the flow of
            // datagrams that the packet began.
            let epoch = next(self.get(id).epoch);
            self.put(id, Backend { epoch, ..Backend::default() }, ops);
            self.free.insert(id);
            any = true;
        }
        any
    }

    /// Returns the number of rows in their grace period.
    pub(super) fn waiting(&self) -> usize {
        self.retired.len()
    }

    /// Reports whether rows are in their grace period.
    pub(super) fn is_waiting(&self) -> bool {
        !self.retired.is_empty()
    }

    fn put(&mut self, id: BackendId, row: Backend, ops: &mut Vec<Op>) {
        if let Some(place) = self.mirror.get_mut(id as usize) {
            *place = row;
            ops.push(Op::PutBackend { id, row });
        }
    }
}

/// Returns the next epoch; 0 is never used.
const fn next(epoch: u32) -> u32 {
    match epoch.wrapping_add(1) {
        0 => 1,
        epoch => epoch,
    }
}
