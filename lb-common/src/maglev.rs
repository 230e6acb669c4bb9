//! Maglev selection tables (Eisenbud et al., NSDI 2016, 3.4): built by the agent, read by the data path.
//!
//! The size is a prime of at least 100 slots a backend (ADR 0006), so shares differ by at most one percent, and an
//! added or removed backend moves few flows beyond its own share.

use crate::addr::Endpoint;

/// Slots per backend that a table must have at least.
pub const SLOTS_PER_BACKEND: u32 = 100;
/// Largest table, a prime; beyond 1,310 backends the ratio falls below [`SLOTS_PER_BACKEND`].
pub const MAX_SLOTS: u32 = 131_071;

/// The sizes in use, primes, each about twice the one before.
///
/// Steps instead of a formula: as long as the size stays, an added or removed backend moves few flows; only a set that
/// outgrows its step is distributed afresh.
const SIZES: [u32; 10] = [307, 613, 1_229, 2_459, 4_919, 9_839, 19_681, 39_367, 78_737, MAX_SLOTS];

/// Number of slots for `members` backends: 0 for none or one, else a prime.
pub const fn size(members: u32) -> u32 {
    if members < 2 {
        return 0;
    }
    let wanted = members.saturating_mul(SLOTS_PER_BACKEND);
    let mut rest: &[u32] = &SIZES;
    while let [size, larger @ ..] = rest {
        if *size >= wanted {
            return *size;
        }
        rest = larger;
    }
    MAX_SLOTS
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
        // The members take turns, so that their shares differ by one slot at most.
        for (index, member) in members.iter().enumerate() {
            let hash = endpoint_hash(member);
            // The size is a prime, so the steps of each member reach every slot (NSDI 2016, 3.4).
            let offset = (hash >> 32) as u32 % size;
            // The step is never 0 and never the size: with either a member would stay at its first slot.
            let skip = hash as u32 % (size - 1) + 1;
            let Some(turn) = next.get_mut(index) else {
                return;
            };
            let slot = loop {
                // The product of turn and step may exceed 32 bits in the largest table.
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
        crate::mix::mix(u64::from(a) << 32 | u64::from(b), u64::from(c) << 32 | u64::from(d));
    crate::mix::mix(left ^ u64::from(port), 0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Ip, Port, Protocol};
    use crate::flow::Tuple;
    use std::vec;
    use std::vec::Vec;

    /// Largest share of the flows of remaining backends that may move when one backend is removed.
    const MOVED: f64 = 0.05;

    fn members(count: u32) -> Vec<Endpoint> {
        let end =
            |index: u32| Endpoint::new(Ip::v4_word((0x0a01_0000 + index).to_be()), Port::new(80));
        (0..count).map(end).collect()
    }

    fn table(members: &[Endpoint]) -> Vec<u16> {
        let mut slots = vec![0; size(members.len() as u32) as usize];
        fill(members, &mut slots, &mut vec![0; members.len()]);
        slots
    }

    fn shares(slots: &[u16], members: usize) -> Vec<u32> {
        let mut shares = vec![0; members];
        for slot in slots {
            shares[usize::from(*slot)] += 1;
        }
        shares
    }

    /// The table of three members: the first slots, and all of them in one number.
    const FIRST4: [u16; 16] = [0, 2, 1, 1, 1, 0, 2, 2, 0, 0, 0, 2, 2, 1, 1, 0];
    const SUM4: u64 = 4_520_828_059_628_813_796;
    const FIRST6: [u16; 16] = [1, 1, 0, 0, 2, 2, 2, 2, 0, 0, 1, 0, 0, 0, 0, 1];
    const SUM6: u64 = 16_909_507_927_655_941_299;

    /// Nodes of one version and of the next continue each other's flows, so their tables must be equal.
    #[test]
    fn tables_of_both_families_are_as_they_were() {
        let ends = |text: [&str; 3]| text.map(crate::fake::at);
        for (members, first, sum) in [
            (ends(["10.1.0.6:8080", "10.1.0.7:8080", "10.2.0.7:8080"]), FIRST4, SUM4),
            (ends(["[fd00:1::6]:8080", "[fd00:1::7]:8080", "[fd00:2::7]:8080"]), FIRST6, SUM6),
        ] {
            let slots = table(&members);
            let digest = slots.iter().fold(0, |sum, slot| crate::mix::mix(sum, (*slot).into()));
            assert_eq!((&slots[..16], digest), (&first[..], sum), "{members:?}");
        }
    }

    #[test]
    fn hash_of_an_endpoint_depends_on_every_part() {
        let of = |text| endpoint_hash(&crate::fake::at(text));
        let all = ["[fd00::1:0:0:1]:80", "[fd00::1:0:0:1]:81", "[fd00::1:0:0:2]:80"].map(of);
        let more = ["[fd00::2:0:0:1]:80", "[fd01::1:0:0:1]:80", "[fd00:0:1:0:1::1]:80"].map(of);
        let all: std::collections::BTreeSet<u64> = all.into_iter().chain(more).collect();
        assert_eq!(all.len(), 6);
    }

    #[test]
    fn sizes_step_up_where_a_hundred_slots_a_member_no_longer_fit() {
        assert_eq!([size(3), size(4), size(6), size(7)], [307, 613, 613, 1_229]);
        assert_eq!(
            [size(787), size(788), size(1_310), size(1_311)],
            [78_737, MAX_SLOTS, MAX_SLOTS, MAX_SLOTS]
        );
    }

    #[test]
    fn slots_are_dealt_from_the_first_to_the_last() {
        for size in [307, MAX_SLOTS] {
            assert_eq!([slot(0, size), slot(u32::MAX, size)], [0, size - 1]);
            assert_eq!(slot(1 << 31, size), size / 2);
        }
    }

    #[test]
    fn nothing_is_filled_where_there_is_nothing() {
        let mut slots = [7_u16; 3];
        fill(&[], &mut slots, &mut []);
        assert_eq!(slots, [7; 3]);
        fill(&members(2), &mut [], &mut [0; 2]);
    }

    #[test]
    fn sizes_are_primes_of_a_hundred_slots_a_member() {
        assert_eq!([size(0), size(1), size(2), size(3)], [0, 0, 307, 307]);
        assert!(size(1_000) >= 100_000);
        let prime = |size: &u32| {
            (2..*size)
                .take_while(|factor| factor * factor <= *size)
                .all(|factor| !size.is_multiple_of(factor))
        };
        assert!(SIZES.iter().all(prime));
        assert_eq!(size(5_000), MAX_SLOTS);
    }

    #[test]
    fn shares_differ_by_one_slot_at_most() {
        for count in [2, 3, 10, 100, 1_000] {
            let shares = shares(&table(&members(count)), count as usize);
            let (low, high) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(high - low <= 1, "{count}: {low} to {high}");
        }
    }

    #[test]
    fn member_whose_hash_is_the_greatest_has_its_share() {
        let members = ["10.1.0.6:8080", "10.1.0.7:8080", "10.1.9.137:53957"].map(crate::fake::at);
        assert_eq!(endpoint_hash(&members[2]) >> 32, u64::from(u32::MAX));
        let mut shares = shares(&table(&members), 3);
        shares.sort_unstable();
        assert_eq!(shares, [102, 102, 103]);
    }

    #[test]
    fn one_backend_less_moves_little_beyond_its_share() {
        // The table's size changes with the members, so compare by hash, as packets see it.
        for count in [3_u32, 10, 40, 95, 700] {
            let all = members(count);
            let mut fewer = all.clone();
            let gone = fewer.remove(count as usize / 2);
            let (before, after) = (table(&all), table(&fewer));
            let moved =
                (0..100_000_u32).map(|index| index.wrapping_mul(0x9e37_79b9)).filter(|hash| {
                    let old = all[usize::from(before[slot(*hash, before.len() as u32) as usize])];
                    let new = fewer[usize::from(after[slot(*hash, after.len() as u32) as usize])];
                    old != gone && old != new
                });
            let moved = moved.count() as f64 / 100_000.0;
            std::eprintln!("{count} members: {:.2} % of other flows moved", moved * 100.0);
            assert!(moved < MOVED, "{count}: {moved}");
        }
    }

    #[test]
    fn choices_are_even_over_many_flows() {
        for count in [1_u32, 2, 3, 10, 100, 1_000] {
            let slots = table(&members(count));
            let mut counts = vec![0_u32; count as usize];
            for flow in 0..100_000_u32 {
                let source = Endpoint::new(
                    Ip::v4_word((0x0a02_0000 + flow / 500).to_be()),
                    Port::new(1_024 + (flow % 500) as u16),
                );
                let to = Endpoint::new(Ip::v4([10, 96, 0, 10]), Port::new(80));
                let hash = crate::hash::tuple(&Tuple::new(source, to), Protocol::TCP);
                let index = if slots.is_empty() {
                    0
                } else {
                    slots[slot(hash, slots.len() as u32) as usize]
                };
                counts[usize::from(index)] += 1;
            }
            let expected = 100_000.0 / f64::from(count);
            let chi: f64 =
                counts.iter().map(|seen| (f64::from(*seen) - expected).powi(2) / expected).sum();
            // Mean and spread of chi-square with count - 1 degrees of freedom; five sigmas, and what
            // the table's own unevenness (one slot in a hundred) adds.
            let freedom = f64::from(count - 1);
            assert!(chi <= freedom + 5.0 * (2.0 * freedom).sqrt() + 10.0, "{count}: {chi}");
        }
    }
}
