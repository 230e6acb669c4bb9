//! Translated sources that are no longer addresses of this node, or those of an interface that is down or has no
//! carrier: no reply can arrive for them.
//!
//! A masqueraded flow stays. Its masquerade becomes pending again, so the next packet gets a current source. A flow of
//! datagrams of a process of this node ends, and the next packet begins another one. netfilter removes such connections
//! as well (`masq_inet_event` and `masq_device_event` in `net/netfilter/nf_nat_masquerade.c`, `nf_nat_oif_changed`). A
//! TCP connection that was answered cannot change its source, and may continue when the interface is up again. One that
//! was not gets another source with its next SYN.

use std::collections::BTreeSet;

use lb_common::addr::{Ip, Protocol};
use lb_common::flow::{Flow, FlowKey, Kind, Side, Tuple};

use super::end::Entries;
use crate::maps::Error;

/// The addresses of this node.
#[derive(Debug, Default)]
pub struct OwnAddresses {
    /// Addresses of all interfaces; none if they are not known yet. The map `ADDRESSES` may have no room for all.
    pub all: BTreeSet<Ip>,
    /// The addresses at which no answer can arrive at present.
    pub stranded: BTreeSet<Ip>,
}

impl OwnAddresses {
    /// Reports whether an entry translates to a source that is gone, or at which no answer can arrive. Without any
    /// address, the node's are not known yet.
    pub(super) fn has_lost(&self, key: &FlowKey, flow: &Flow) -> bool {
        let source = &flow.to.source;
        let is_masquerade = flow.kind == Kind::MASQUERADE && *source != Ip::UNSPECIFIED;
        let is_gone = || !self.all.is_empty() && !self.all.contains(source);
        // An open TCP connection cannot change its source: it waits until the interface works again.
        let is_bound = key.protocol == Protocol::TCP && flow.shown.established != 0;
        let is_stranded = || !is_bound && self.stranded.contains(source);
        (is_masquerade || is_of_process(key, flow)) && (is_gone() || is_stranded())
    }

    /// Makes a masquerade pending again, or ends the flow of a process. Returns false if its source is no longer a lost
    /// one.
    pub(super) fn renew<E: Entries>(&self, entries: &E, key: &FlowKey) -> Result<bool, Error> {
        let Some(lost) = entries.entry(key)?.filter(|flow| self.has_lost(key, flow)) else {
            return Ok(false);
        };
        // The forward entry is changed first: a packet in between gets a new source instead of the lost one.
        if is_of_process(key, &lost) {
            entries.take(key)?;
            entries.take_copy(key, lost.seen)?;
        } else {
            let mut renewed = lost;
            renewed.to = Tuple::NONE;
            entries.replace(key, &renewed)?;
        }
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

/// Whether an entry is that of datagrams of a process of this node, whose source the data path has translated
/// (ADR 0027).
fn is_of_process(key: &FlowKey, flow: &Flow) -> bool {
    flow.kind == Kind::FORWARD
        && key.side == Side::EGRESS
        && key.protocol != Protocol::TCP
        && flow.to.source != key.tuple.source
}

#[cfg(test)]
mod tests {
    use lb_common::addr::{Endpoint, Port};
    use lb_common::flow::Shown;

    use super::super::end::tests::Table;
    use super::super::tests::{masqueraded, pair};
    use super::*;

    fn host(last: u8) -> Ip {
        Ip::v4([10, 0, 0, last])
    }

    fn own(all: &[Ip], stranded: &[Ip]) -> OwnAddresses {
        let [all, stranded] = [all, stranded].map(|list| list.iter().copied().collect());
        OwnAddresses { all, stranded }
    }

    /// Returns the entries of a flow of a process, whose source became 10.0.0.9:2000.
    fn of_process(protocol: Protocol) -> [(FlowKey, Flow); 2] {
        let [(mut key, mut forward), (_, reply)] =
            pair(protocol, 0, [Shown::ESTABLISHED; 2]).try_into().unwrap();
        key.side = Side::EGRESS;
        let source = Endpoint::new(host(9), Port::new(2000));
        let backend = Endpoint::new(forward.to.destination, forward.to.destination_port);
        forward.to = Tuple::new(source, backend);
        [(key, forward), (key.opposite(&forward), reply)]
    }

    #[test]
    fn flow_of_a_process_ends_with_its_source() {
        let flow = of_process(Protocol::UDP);
        let [(key, _), _] = flow;
        for gone in [own(&[host(1)], &[]), own(&[host(1), host(9)], &[host(9)])] {
            let table = Table::new(&flow, u32::MAX);
            assert!(gone.renew(&table, &key).unwrap());
            assert!(table.entries.borrow().is_empty());
            assert!(!table.copies.borrow().contains_key(&key));
        }
        for kept in [own(&[host(1), host(9)], &[]), own(&[], &[])] {
            let table = Table::new(&flow, u32::MAX);
            assert!(!kept.renew(&table, &key).unwrap());
            assert_eq!(table.entries.borrow().len(), 2);
        }
    }

    #[test]
    fn connections_and_untranslated_sources_stay() {
        let own = own(&[host(8)], &[host(1), host(9)]);
        let tcp = of_process(Protocol::TCP);
        let client = pair(Protocol::UDP, 0, [Shown::ESTABLISHED; 2]);
        for (key, flow) in tcp.iter().chain(&client) {
            assert!(!own.has_lost(key, flow), "{key:?}");
        }
    }

    /// Its SYNs would be sent from the lost address until the client gives up.
    #[test]
    fn connection_that_was_never_answered_gets_another_source() {
        let own = own(&[host(1), host(9)], &[host(9)]);
        for (shown, is_lost) in [(Shown::NOTHING, true), (Shown::ESTABLISHED, false)] {
            let mut flow = masqueraded(0);
            let (key, entry) = &mut flow[2];
            entry.shown = shown;
            assert_eq!(own.has_lost(key, entry), is_lost, "{shown:?}");
        }
    }

    #[test]
    fn masquerade_becomes_pending_again() {
        let flow = masqueraded(0);
        let [_, _, (key, _), (back, _)] = *flow else { panic!("four entries") };
        let table = Table::new(&flow, u32::MAX);
        assert!(own(&[host(1)], &[]).renew(&table, &key).unwrap());
        let entries = table.entries.borrow();
        assert_eq!(entries[&key].to, Tuple::NONE);
        assert!(!entries.contains_key(&back) && entries.len() == 3);
    }
}
