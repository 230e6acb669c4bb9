//! Halves of flows, over the two maps that keep them: `FLOWS4` for IPv4, `FLOWS6` for all else.
//!
//! VERIFIER: functions of their own, but for the one of the fast path: in place, each asks the program around it for
//! more stack than there is.

use lb_common::flow::{Flow, Flow4, FlowKey, FlowKey4};

use crate::kernel::NO_MEMORY;
use crate::maps::{FLOW4, FLOWS4, FLOWS6};

/// The key of `FLOWS4`, and room for a half on its way there, in memory of this CPU: the stack has none.
#[inline(always)]
fn key4(key: &FlowKey) -> Option<(&'static FlowKey4, &'static mut Flow4)> {
    let place = FLOW4.get_ptr_mut(0)?;
    // SAFETY: the element is this CPU's own. Only packets have flows of IPv4 on both ends; their programs run with
    // softirqs off, one at a time, and no call here reads what another one wrote.
    let (key4, room) = unsafe { &mut *place };
    *key4 = FlowKey4::of(key);
    Some((key4, room))
}

/// Copies a half; says whether it was there.
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
        let flow = unsafe { FLOWS4.get(key) };
        flow.map(|flow| flow.write(into)).is_some()
    } else {
        // SAFETY: as above.
        let flow = unsafe { FLOWS6.get(key) };
        flow.map(|flow| *into = *flow).is_some()
    }
}

/// The same as a value.
#[inline(always)]
pub(crate) fn copy_of<const V4: bool>(key: &FlowKey) -> Option<Flow> {
    if V4 {
        let (key, _) = key4(key)?;
        // SAFETY: as for `copy` in `kernel`.
        let flow = unsafe { FLOWS4.get(key) };
        flow.map(Flow4::whole)
    } else {
        // SAFETY: as above.
        let flow = unsafe { FLOWS6.get(key) };
        flow.copied()
    }
}

/// Puts a half as `flags` of `bpf_map_update_elem` say, and gives its answer: 0, or an error. (A `Result` would
/// take memory of the stack.)
#[inline(never)]
pub(crate) fn put(key: &FlowKey, flow: &Flow, flags: u64) -> i32 {
    let put = if key.is_v4() {
        let Some((key, kept)) = key4(key) else { return NO_MEMORY };
        kept.put(flow);
        let kept: &Flow4 = kept;
        FLOWS4.insert(key, kept, flags)
    } else {
        FLOWS6.insert(key, flow, flags)
    };
    put.map_or_else(|error| error, |()| 0)
}

/// Writes in a half, in place, if it is there: both tables' have the fields that change.
macro_rules! write_in {
    ($key:ident, $flow:ident => $written:block) => {
        if $key.is_v4() {
            if let Some($flow) = key4($key).and_then(|(key, _)| FLOWS4.get_ptr_mut(key)) {
                $written
            }
        } else if let Some($flow) = FLOWS6.get_ptr_mut($key) {
            $written
        }
    };
}

/// Marks a half as seen and adds to its state.
#[inline(never)]
pub(crate) fn touch(key: &FlowKey, now: u64, state: u8) {
    write_in!(key, flow => {
        // SAFETY: an aligned word of a live element; the last writer of a second wins.
        unsafe { (*flow).seen = now };
        // SAFETY: one byte; a bit lost to a race is shown again by the next packet.
        unsafe { (*flow).state |= state };
    });
}

/// Notes something in a half.
#[inline(never)]
pub(crate) fn confirm(key: &FlowKey, note: u32) {
    write_in!(key, flow => {
        // SAFETY: an aligned word of a live element.
        unsafe { (*flow).note = note };
    });
}

/// Removes a half, if it is there.
#[inline(never)]
pub(crate) fn remove(key: &FlowKey) {
    if !key.is_v4() {
        let _gone: Result<(), i32> = FLOWS6.remove(key);
    } else if let Some((key, _)) = key4(key) {
        let _gone: Result<(), i32> = FLOWS4.remove(key);
    }
}
