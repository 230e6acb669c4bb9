//! The entry that a packet follows, and the entries that are found from it.

use crate::flow::{Entry, Flow, FlowKey, Side};
use crate::tables::Flows;
use crate::wire::Headers;

/// The entry that a packet follows, and the entries that are found from it. Read by every step after the search.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// The key of the entry: that of the packet's headers. Only a packet that bypasses the stack (`bypass`, `redirect`)
    /// has the key of the entry by which it leaves.
    pub key: FlowKey,
    /// The entry: found by [`Found::look_up`], or written for the packet that begins the flow (`begin::commit`).
    pub flow: Flow,
    /// The entry of the other direction of that flow, once [`Found::find_opposite`] has looked for it.
    pub opposite: Entry,
    /// The entry that replies to the packet, as it came, would meet; valid after [`Found::find_answers`].
    pub answers: Entry,
    /// Room for one more entry. Its content is valid only inside the function that fills it.
    pub visited: Entry,
}

impl Found {
    /// Finds the entry of a key. Where there is none, the key stays, and the entry holds leftovers.
    #[inline(always)]
    pub(in crate::forward) fn look_up<T: Flows>(&mut self, tables: &T, key: &FlowKey) -> bool {
        self.key = *key;
        tables.flow(&self.key, &mut self.flow)
    }

    /// Finds the entry of the other direction of the flow, into `opposite`.
    ///
    /// False as in [`opposite_of`].
    #[inline(always)]
    pub(in crate::forward) fn find_opposite<T: Flows>(&mut self, tables: &T) -> bool {
        opposite_of(tables, &self.key, &self.flow, &mut self.opposite)
    }

    /// Finds the entry that replies to a packet would meet on a side, into `answers`.
    #[inline(always)]
    pub(in crate::forward) fn find_answers<T: Flows>(
        &mut self,
        tables: &T,
        headers: &Headers,
        side: Side,
    ) -> bool {
        let Entry { key, flow } = &mut self.answers;
        headers.key.tuple.write_reversed(&mut key.tuple);
        key.protocol = headers.key.protocol;
        key.side = side;
        tables.flow(key, flow)
    }
}

/// Finds the entry of the other direction of the flow that an entry belongs to.
///
/// False where that entry is gone or belongs to another flow by now
/// ([`ports::reserve`](crate::forward::begin::ports::reserve)).
#[inline(never)]
pub(in crate::forward) fn opposite_of<T: Flows>(
    tables: &T,
    key: &FlowKey,
    flow: &Flow,
    opposite: &mut Entry,
) -> bool {
    key.write_opposite(flow, &mut opposite.key);
    tables.flow(&opposite.key, &mut opposite.flow) && opposite.flow.to.is_reverse_of(&key.tuple)
}
