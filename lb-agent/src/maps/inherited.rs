//! `INHERITED`: hashes of the tuples that netfilter translates since kube-proxy (ADR 0031).

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

use lb_common::maps::name;

use super::error::{Result, batched};
use super::fill::capacity;
use super::handles::{MapHandle as _, Maps};
use super::walk;
use crate::syscall;

impl Maps {
    /// Returns the hashes in the map.
    pub fn inherited(&self) -> Result<BTreeSet<u64>> {
        let mut all = BTreeSet::new();
        walk::walk(self.inherited.data(), (0_u64, 0_u32), |hash, _| {
            all.insert(*hash);
            true
        })
        .map_err(batched(name::INHERITED))?;
        Ok(all)
    }

    /// Makes the map contain exactly these hashes. If it is too small, the first ones are kept; returns how many are
    /// left out.
    pub fn set_inherited(&self, wanted: &[u64]) -> Result<usize> {
        let capacity = capacity(&self.inherited, name::INHERITED)? as usize;
        let (fitting, left_out) = fitting(wanted, capacity);
        let there = self.inherited()?;
        let gone: Vec<u64> = there.difference(&fitting).copied().collect();
        let new: Vec<u64> = fitting.difference(&there).copied().collect();
        let map = self.inherited.data();
        // Old hashes are removed first: the map may be full, and then the new ones would find no room.
        walk::remove(map, &gone).map_err(batched(name::INHERITED))?;
        let added = syscall::update_batch(map.fd().as_fd(), &new, &vec![0_u32; new.len()]);
        added.map_err(batched(name::INHERITED))?;
        // Egress may have recorded these hashes as answers before they were here; their datagrams would then pass even
        // after the take-over.
        walk::remove(self.own_answers.data(), &new).map_err(batched(name::OWN_ANSWERS))?;
        Ok(left_out)
    }
}

/// Returns the first distinct hashes that fit, and the number of the others.
fn fitting(wanted: &[u64], capacity: usize) -> (BTreeSet<u64>, usize) {
    let (mut fitting, mut left_out) = (BTreeSet::new(), BTreeSet::new());
    for hash in wanted {
        if fitting.len() < capacity {
            fitting.insert(*hash);
        // A connection can be listed twice and must not count as left out.
        } else if !fitting.contains(hash) {
            left_out.insert(*hash);
        }
    }
    (fitting, left_out.len())
}

#[cfg(test)]
mod tests {
    use super::fitting;

    #[test]
    fn first_hashes_find_room_and_others_are_counted_once() {
        assert_eq!(fitting(&[7, 7, 9], 2), ([7, 9].into(), 0));
        assert_eq!(fitting(&[7, 9, 8, 7, 8, 1], 2), ([7, 9].into(), 2));
        assert_eq!(fitting(&[], 2), ([].into(), 0));
    }
}
