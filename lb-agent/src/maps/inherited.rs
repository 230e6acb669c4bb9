//! `INHERITED`: tuples by which netfilter translates what kube-proxy began.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

use super::{MapHandle as _, Maps, Result, batched, walk};
use crate::syscall;

impl Maps {
    /// The hashes that are there.
    pub fn inherited(&self) -> Result<BTreeSet<u64>> {
        let mut all = BTreeSet::new();
        walk::walk(self.inherited.data(), (0_u64, 0_u32), |hash, _| {
            all.insert(*hash);
            true
        })
        .map_err(batched("INHERITED"))?;
        Ok(all)
    }

    /// Makes these be there, and no other.
    pub fn set_inherited(&self, wanted: &BTreeSet<u64>) -> Result<()> {
        let there = self.inherited()?;
        let gone: Vec<u64> = there.difference(wanted).copied().collect();
        let new: Vec<u64> = wanted.difference(&there).copied().collect();
        let map = self.inherited.data();
        walk::remove(map, &gone).map_err(batched("INHERITED"))?;
        let added = syscall::update_batch(map.fd().as_fd(), &new, &vec![0_u32; new.len()]);
        added.map_err(batched("INHERITED"))
    }
}
