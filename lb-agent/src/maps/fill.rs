//! Fill level and capacity of the maps.

use std::collections::BTreeMap;

use aya::Pod;
use lb_common::addr::Ip;
use lb_common::config::Device;
use lb_common::flow::{Affinity, Client, Flow, Flow4, FlowKey, FlowKey4, Fragment, Held, Ports};

use super::raw::Raw;
use super::{MapHandle, Maps, Result, batched, named, walk};
use crate::reconcile::{Limits, Usage};

impl Maps {
    /// How much the maps that the agent fills can hold.
    pub fn limits(&self) -> Result<Limits> {
        Ok(Limits {
            services: capacity(&self.services, "SERVICES")?,
            backends: capacity(&self.backends, "BACKENDS")?,
            lines: capacity(&self.slots, "SLOTS")?,
            sources: capacity(&self.sources, "SOURCES")?,
        })
    }

    /// How many entries of answered flows there can be, of IPv4 and of IPv6.
    pub fn flow_capacities(&self) -> Result<[u32; 2]> {
        Ok([capacity(&self.flows4, "FLOWS4")?, capacity(&self.flows6, "FLOWS6")?])
    }

    /// Name, entries and capacity of every map that can fill up. Walks them: not for every second.
    pub fn fill(&self) -> Result<Vec<(&'static str, usize, u32)>> {
        self.fill_given(&Usage {
            services: self.services()?.len(),
            backends: self.backends_in_use()?,
            lines: self.lines_in_use()?,
            sources: self.sources()?.len(),
        })
    }

    /// The same where the entries of the maps that the agent fills are known: its largest are not read.
    pub fn fill_given(&self, usage: &Usage) -> Result<Vec<(&'static str, usize, u32)>> {
        Ok(vec![
            ("SERVICES", usage.services, capacity(&self.services, "SERVICES")?),
            fill::<_, Raw<FlowKey4>, Raw<Flow4>>(&self.flows4, "FLOWS4")?,
            fill::<_, Raw<FlowKey>, Raw<Flow>>(&self.flows6, "FLOWS6")?,
            fill::<_, Raw<FlowKey4>, Raw<Flow4>>(&self.transient4, "TRANSIENT4")?,
            fill::<_, Raw<FlowKey>, Raw<Flow>>(&self.transient6, "TRANSIENT6")?,
            fill::<_, Raw<Client>, Raw<Affinity>>(&self.affinity, "AFFINITY")?,
            fill::<_, Raw<Ip>, u32>(&self.addresses, "ADDRESSES")?,
            fill::<_, u32, Raw<Device>>(&self.devices, "DEVICES")?,
            fill::<_, Raw<Fragment>, Raw<Ports>>(&self.fragments, "FRAGMENTS")?,
            fill::<_, Raw<Fragment>, Raw<Held>>(&self.held, "HELD")?,
            fill::<_, u64, u32>(&self.inherited, "INHERITED")?,
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
        let sets: BTreeMap<u32, u32> =
            sets.filter(|set| set.members > 0).map(|set| (set.line, set.lines())).collect();
        Ok(sets.values().sum::<u32>() as usize)
    }
}

pub(super) fn capacity(map: &impl MapHandle, name: &'static str) -> Result<u32> {
    map.data().info().map(|info| info.max_entries()).map_err(named(name))
}

fn fill<M: MapHandle, K: Pod + Default, V: Pod + Default>(
    map: &M,
    name: &'static str,
) -> Result<(&'static str, usize, u32)> {
    let count = walk::count(map.data(), (K::default(), V::default())).map_err(batched(name))?;
    Ok((name, count, capacity(map, name)?))
}
