//! The prefixes in `SOURCE_RANGES`: the clients that may use a service (contract 3.8).

use std::collections::BTreeSet;

use ipnet::IpNet;
use lb_common::addr::Ip;
use lb_common::service::{ServiceId, Source};

use super::Op;
use super::ranges::mapped;

/// Bits of a [`Source`] before its address: the service id.
const SERVICE_BITS: u32 = ServiceId::BITS;

/// A mirror of `SOURCE_RANGES`.
#[derive(Debug, Default)]
pub(super) struct Sources {
    written: BTreeSet<(Source, u32)>,
}

impl Sources {
    /// Makes the mirror from the content of the map.
    pub(super) fn new(entries: impl IntoIterator<Item = (u32, Source)>) -> Self {
        Self { written: entries.into_iter().map(|(bits, source)| (source, bits)).collect() }
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.written.len()
    }

    /// Returns how many entries `nets` would add.
    pub(super) fn missing(&self, id: ServiceId, nets: &[IpNet]) -> usize {
        let wanted: BTreeSet<_> = nets.iter().map(|net| entry(id, net)).collect();
        wanted.difference(&self.written).count()
    }

    /// Sets the sources of a service. Additions go to `before`, removals to `after`, so that no allowed client is
    /// refused in between.
    pub(super) fn set(
        &mut self,
        id: ServiceId,
        nets: &[IpNet],
        before: &mut Vec<Op>,
        after: &mut Vec<Op>,
    ) {
        let wanted: BTreeSet<_> = nets.iter().map(|net| entry(id, net)).collect();
        // This is the smallest key of the service; its sources follow one another in the set.
        let from = (Source::new(id, Ip::UNSPECIFIED), 0);
        let present = self.written.range(from..).copied();
        let present: BTreeSet<_> = present.take_while(|(source, _)| source.service == id).collect();
        for &(source, bits) in wanted.difference(&present) {
            self.written.insert((source, bits));
            before.push(Op::PutSource { bits, source });
        }
        for &(source, bits) in present.difference(&wanted) {
            self.written.remove(&(source, bits));
            after.push(Op::RemoveSource { bits, source });
        }
    }

    /// Returns the services that have entries.
    pub(super) fn services(&self) -> BTreeSet<ServiceId> {
        self.written.iter().map(|(source, _)| source.service).collect()
    }
}

fn entry(id: ServiceId, net: &IpNet) -> (Source, u32) {
    let (ip, bits) = mapped(net);
    (Source::new(id, ip), SERVICE_BITS + bits)
}
