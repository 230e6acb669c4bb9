//! Masquerades whose source is no address of this node any more: nobody's answer comes back to it.
//!
//! The flow stays. Its masquerade becomes what it was before its first packet left, so the next one gives it a source that the
//! node has; netfilter forgets such connections, too (`nf_nat_masquerade_inet`).

use std::collections::BTreeSet;

use lb_common::addr::Ip;
use lb_common::flow::{Flow, FlowKey, Kind, Tuple};

use super::end::Halves;
use crate::maps::{Error, Maps};

/// The addresses of this node.
pub(super) struct Own(BTreeSet<Ip>);

impl Own {
    /// What the data path knows of them now.
    pub(super) fn read(maps: &Maps) -> Result<Self, Error> {
        Ok(Self(maps.addresses()?.into_iter().map(|(ip, _)| ip).collect()))
    }

    /// Whether a half is a masquerade under an address that is gone. A node without any is not known yet.
    pub(super) fn has_lost(&self, flow: &Flow) -> bool {
        let source = &flow.to.source;
        flow.kind == Kind::MASQUERADE
            && *source != Ip::UNSPECIFIED
            && !self.0.is_empty()
            && !self.0.contains(source)
    }

    /// Takes the lost source from a masquerade; false where it has none any more.
    pub(super) fn renew<H: Halves>(&self, halves: &H, key: &FlowKey) -> Result<bool, Error> {
        let Some(lost) = halves.half(key)?.filter(|flow| self.has_lost(flow)) else {
            return Ok(false);
        };
        let mut renewed = lost;
        renewed.to = Tuple::NONE;
        halves.replace(key, &renewed)?;
        let back_key = key.other(&lost);
        if let Some(back) = halves.take(&back_key)?
            && !back.to.is_reverse_of(&key.tuple)
        {
            halves.restore(&back_key, &back)?;
        }
        Ok(true)
    }
}
