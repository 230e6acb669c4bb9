//! Entries of flows, over the four maps that keep them: `FLOWS4` and `TRANSIENT4` for IPv4, `FLOWS6` and `TRANSIENT6` for
//! all else.
//!
//! VERIFIER: functions of their own, but for the one of the fast path: in place, each asks the program around it for
//! more stack than there is.

use lb_common::flow::{Flow, Flow4, FlowKey, FlowKey4};
use lb_common::tables::Touch;

use crate::kernel::NO_MEMORY;
use crate::maps::{FLOW4, FLOWS4, FLOWS6, TRANSIENT4, TRANSIENT6};

pub(crate) const EXISTS: i32 = -17;
/// `BPF_NOEXIST`.
const NO_EXIST: u64 = 1;

/// The key of `FLOWS4`, and room for an entry on its way there, in memory of this CPU: the stack has none.
#[inline(always)]
fn key4(key: &FlowKey) -> Option<(&'static FlowKey4, &'static mut Flow4)> {
    let place = FLOW4.get_ptr_mut(0)?;
    // SAFETY: the element is this CPU's own. Only packets have flows of IPv4 on both ends; their programs run with
    // softirqs off, one at a time, and no call here reads what another one wrote.
    let (key4, room) = unsafe { &mut *place };
    *key4 = FlowKey4::of(key);
    Some((key4, room))
}

/// Copies an entry; says whether it was there.
#[inline(never)]
pub(crate) fn load(key: &FlowKey, into: &mut Flow) -> bool {
    if key.is_v4() { load_of::<true>(key, into) } else { load_of::<false>(key, into) }
}

/// The same where the family is known.
#[inline(always)]
pub(crate) fn load_of<const V4: bool>(key: &FlowKey, into: &mut Flow) -> bool {
    if V4 {
        let Some((key, _)) = key4(key) else { return false };
        // SAFETY: as for `copy` in `kernel`.
        if let Some(flow) = unsafe { FLOWS4.get(key) } {
            flow.write(into);
            return true;
        }
        // SAFETY: as above.
        let flow = unsafe { TRANSIENT4.get(key) };
        flow.map(|flow| flow.write(into)).is_some()
    } else {
        // SAFETY: as above.
        if let Some(flow) = unsafe { FLOWS6.get(key) } {
            *into = *flow;
            return true;
        }
        // SAFETY: as above.
        let flow = unsafe { TRANSIENT6.get(key) };
        flow.map(|flow| *into = *flow).is_some()
    }
}

/// The same as a value. (What lies in `into` already cannot be made of it: by way of the stack it costs 32 bytes.)
#[inline(always)]
pub(crate) fn copy_of<const V4: bool>(key: &FlowKey) -> Option<Flow> {
    if V4 {
        let (key, _) = key4(key)?;
        // SAFETY: as for `copy` in `kernel`.
        if let Some(flow) = unsafe { FLOWS4.get(key) } {
            return Some(flow.whole());
        }
        // SAFETY: as above.
        let flow = unsafe { TRANSIENT4.get(key) };
        flow.map(Flow4::whole)
    } else {
        // SAFETY: as above.
        if let Some(flow) = unsafe { FLOWS6.get(key) } {
            return Some(*flow);
        }
        // SAFETY: as above.
        let flow = unsafe { TRANSIENT6.get(key) };
        flow.copied()
    }
}

/// Adds an entry if neither table has its key, and gives the answer of `bpf_map_update_elem`: 0, or an error. (A `Result`
/// would take memory of the stack.)
#[inline(never)]
pub(crate) fn add(key: &FlowKey, flow: &Flow) -> i32 {
    let is_taken = if !key.is_v4() {
        FLOWS6.get_ptr(key).is_some()
    } else if let Some((key, _)) = key4(key) {
        FLOWS4.get_ptr(key).is_some()
    } else {
        return NO_MEMORY;
    };
    if is_taken { EXISTS } else { write(key, flow, NO_EXIST) }
}

/// Overwrites an entry in the table that it names, or adds it there, with the same answer.
#[inline(always)]
pub(crate) fn put(key: &FlowKey, flow: &Flow) -> i32 {
    write(key, flow, 0)
}

/// An entry that is added to a transient table is looked at as well: the kernel displaces those first that nobody has looked
/// at, and a reply whose answer is still on its way would go before older ones.
#[inline(never)]
fn write(key: &FlowKey, flow: &Flow, flags: u64) -> i32 {
    let written = if key.is_v4() {
        let Some((key, kept)) = key4(key) else { return NO_MEMORY };
        kept.put(flow);
        let kept: &Flow4 = kept;
        if flow.is_protected() {
            FLOWS4.insert(key, kept, flags)
        } else {
            let written = TRANSIENT4.insert(key, kept, flags);
            if flags == NO_EXIST {
                let _looked_at = TRANSIENT4.get_ptr(key);
            }
            written
        }
    } else if flow.is_protected() {
        FLOWS6.insert(key, flow, flags)
    } else {
        let written = TRANSIENT6.insert(key, flow, flags);
        if flags == NO_EXIST {
            let _looked_at = TRANSIENT6.get_ptr(key);
        }
        written
    };
    written.map_or_else(|error| error, |()| 0)
}

/// Writes in an entry, in place, wherever it is: all four tables' have the fields that change.
macro_rules! write_in {
    ($key:ident, $flow:ident => $written:block) => {
        if $key.is_v4() {
            if let Some((key, _)) = key4($key) {
                if let Some($flow) = FLOWS4.get_ptr_mut(key) {
                    $written
                } else if let Some($flow) = TRANSIENT4.get_ptr_mut(key) {
                    $written
                }
            }
        } else if let Some($flow) = FLOWS6.get_ptr_mut($key) {
            $written
        } else if let Some($flow) = TRANSIENT6.get_ptr_mut($key) {
            $written
        }
    };
}

/// Marks an entry as seen, and what its packet has shown.
#[inline(never)]
pub(crate) fn touch(key: &FlowKey, touch: &Touch) {
    write_in!(key, flow => {
        // SAFETY: an aligned word of a live element; the last writer of a second wins.
        unsafe { (*flow).seen = touch.seen };
        // SAFETY: whole bytes of a live element, each only ever set here, so that no writer undoes another's.
        unsafe { (*flow).shown.set(touch.shown) };
        if touch.expected != 0 {
            // SAFETY: an aligned word of a live element.
            unsafe { (*flow).expected = touch.expected };
        }
        if touch.is_alive {
            // SAFETY: one byte of a live element; a RST at the same moment is lost, or noted again by the next one.
            unsafe { (*flow).shown.rst = 0 };
        }
    });
}

/// Notes in an entry that its frontend was looked up.
#[inline(never)]
pub(crate) fn confirm(key: &FlowKey, frontends_epoch: u32) {
    write_in!(key, flow => {
        // SAFETY: an aligned word of a live element.
        unsafe { (*flow).frontends_epoch = frontends_epoch };
    });
}

/// Removes an entry of both tables, if it is there.
#[inline(never)]
pub(crate) fn remove(key: &FlowKey) {
    remove_protected(key);
    if !key.is_v4() {
        let _gone: Result<(), i32> = TRANSIENT6.remove(key);
    } else if let Some((key, _)) = key4(key) {
        let _gone: Result<(), i32> = TRANSIENT4.remove(key);
    }
}

/// Removes an entry of the protected flows, if it is there.
#[inline(never)]
pub(crate) fn remove_protected(key: &FlowKey) {
    if !key.is_v4() {
        let _gone: Result<(), i32> = FLOWS6.remove(key);
    } else if let Some((key, _)) = key4(key) {
        let _gone: Result<(), i32> = FLOWS4.remove(key);
    }
}
