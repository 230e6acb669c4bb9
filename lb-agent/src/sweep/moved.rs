//! Masquerades whose source is no longer an address of this node, or one of an interface that is down: no reply can
//! arrive for them.
//!
//! The flow stays. Its masquerade becomes pending again, so the next packet gets a current source. netfilter removes
//! such connections as well (`masq_inet_event` and `masq_device_event` in `net/netfilter/nf_nat_masquerade.c`). A TCP
//! connection cannot change its source, and may continue when the interface is up again.

use std::collections::BTreeSet;

use lb_common::addr::{Ip, Protocol};
use lb_common::flow::{Flow, FlowKey, Kind, Tuple};

use super::end::Entries;
use crate::maps::{Error, Maps};

/// The addresses of this node.
pub(super) struct OwnAddresses {
    all: BTreeSet<Ip>,
    /// The addresses at which no answer can arrive at present.
    stranded: BTreeSet<Ip>,
}

impl OwnAddresses {
    /// Reads the addresses from the data path's map.
    pub(super) fn read(maps: &Maps, stranded: BTreeSet<Ip>) -> Result<Self, Error> {
        let all = maps.addresses()?.into_iter().map(|(ip, _)| ip).collect();
        Ok(Self { all, stranded })
    }

    /// Reports whether an entry is a masquerade with an address that is gone, or at which no answer can arrive. Without
    /// any address, the node's are not known yet.
    pub(super) fn has_lost(&self, protocol: Protocol, flow: &Flow) -> bool {
        let source = &flow.to.source;
        let is_gone = || !self.all.is_empty() && !self.all.contains(source);
        let is_stranded = || protocol != Protocol::TCP && self.stranded.contains(source);
        flow.kind == Kind::MASQUERADE && *source != Ip::UNSPECIFIED && (is_gone() || is_stranded())
    }

    /// Makes a masquerade pending again. Returns false if its source is no longer a lost one.
    pub(super) fn renew<E: Entries>(&self, entries: &E, key: &FlowKey) -> Result<bool, Error> {
        let Some(lost) = entries.entry(key)?.filter(|flow| self.has_lost(key.protocol, flow))
        else {
            return Ok(false);
        };
        let mut renewed = lost;
        renewed.to = Tuple::NONE;
        // The forward entry is replaced first: a packet in between gets a new source instead of the lost one.
        entries.replace(key, &renewed)?;
        let back_key = key.opposite(&lost);
        if let Some(back) = entries.take(&back_key)?
            // Another flow may have got the tuple meanwhile; its reply entry is put back.
            && !back.to.is_reverse_of(&key.tuple)
        {
            entries.restore(&back_key, &back)?;
        }
        Ok(true)
    }
}
