//! Maglev selection tables (Eisenbud et al., NSDI 2016, 3.4): built by the agent, read by the data path.
//!
//! The size is a prime of at least 100 slots a backend (ADR 0006), so shares differ by at most one
//! percent and one backend's coming or going moves little beyond its own share.

use crate::addr::Endpoint;

/// Slots per backend that a table must have at least.
pub const SLOTS_PER_BACKEND: u32 = 100;
/// Largest table, a prime; beyond 1,310 backends the ratio falls below [`SLOTS_PER_BACKEND`].
pub const MAX_SLOTS: u32 = 131_071;

/// Number of slots for `members` backends: 0 for none or one, else a prime.
pub const fn size(members: u32) -> u32 {
    if members < 2 {
        return 0;
    }
    let mut candidate = members.saturating_mul(SLOTS_PER_BACKEND) | 1;
    if candidate >= MAX_SLOTS {
        return MAX_SLOTS;
    }
    while !is_prime(candidate) {
        candidate += 2;
    }
    candidate
}

const fn is_prime(odd: u32) -> bool {
    let mut divisor = 3;
    while divisor * divisor <= odd {
        if odd % divisor == 0 {
            return false;
        }
        divisor += 2;
    }
    odd > 1
}

/// Fills `slots` with member indices. `next` is scratch of at least `members.len()` words.
///
/// The result depends on the members' addresses and ports and on their order: sort them, and every
/// node builds the same table. `slots.len()` must be [`size`] of the number of members.
pub fn fill(members: &[Endpoint], slots: &mut [u16], next: &mut [u32]) {
    const FREE: u16 = u16::MAX;
    let size = slots.len() as u32;
    if size == 0 || members.is_empty() {
        return;
    }
    slots.fill(FREE);
    next.fill(0);
    let mut filled = 0;
    loop {
        for (index, member) in members.iter().enumerate() {
            let hash = endpoint_hash(member);
            let offset = (hash >> 32) as u32 % size;
            let skip = hash as u32 % (size - 1) + 1;
            let Some(turn) = next.get_mut(index) else {
                return;
            };
            let slot = loop {
                let at = (u64::from(offset) + u64::from(*turn) * u64::from(skip)) % u64::from(size);
                *turn += 1;
                match slots.get_mut(at as usize) {
                    Some(slot) if *slot == FREE => break slot,
                    Some(_) | None => {}
                }
            };
            *slot = index as u16;
            filled += 1;
            if filled == size {
                return;
            }
        }
    }
}

/// The slot of a hash in a table of `size` slots: a multiplication instead of a division.
#[inline(always)]
pub const fn slot(hash: u32, size: u32) -> u32 {
    ((hash as u64 * size as u64) >> 32) as u32
}

fn endpoint_hash(endpoint: &Endpoint) -> u64 {
    let [a, b, c, d] = endpoint.ip.words();
    let port = u32::from(endpoint.port.get());
    let left =
        crate::hash::mix(u64::from(a) << 32 | u64::from(b), u64::from(c) << 32 | u64::from(d));
    crate::hash::mix(left ^ u64::from(port), 0x9e37_79b9_7f4a_7c15)
}
