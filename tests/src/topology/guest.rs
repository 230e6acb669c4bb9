//! A container of a node that is no pod, as another container engine starts it: only its node has a route to it.

use anyhow::{Context as _, Result};

use super::{Addresses, Member, Topology};

impl Topology {
    /// Adds a guest with these addresses to node `index` (counted from 0), behind a wire as pods have it. It serves
    /// nothing.
    ///
    /// Dropping it removes its namespace and with that its wire.
    pub fn guest(&self, index: usize, name: &str, addresses: Addresses) -> Result<Member> {
        let node = self.nodes.get(index).with_context(|| format!("no node {index}"))?;
        let guest = node.guest(&self.namespaces, &self.builder, name, addresses)?;
        node.until_wired()?;
        guest.until_wired()?;
        Ok(guest)
    }
}
