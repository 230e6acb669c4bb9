//! The lines of a set: members, then their Maglev slots, in the layout of `lb_common::service::Set`.

use lb_common::addr::Endpoint;
use lb_common::maglev;
use lb_common::service::{BackendId, LINE, Line, MEMBERS_PER_LINE, NARROW, Set};

/// Returns the shape of a set with this many members that begins at `line`.
pub(super) const fn shape(line: u32, members: u32) -> Set {
    Set { line, members, slots: maglev::size(members) }
}

/// Returns the number of lines of a set.
pub(crate) const fn lines_of(members: u32) -> u32 {
    shape(0, members).lines()
}

/// Returns the content of a set's lines. `members` are sorted by address and port, so that all nodes agree.
pub(super) fn lines(members: &[(Endpoint, BackendId)]) -> Vec<Line> {
    let set = shape(0, members.len() as u32);
    let mut bytes: Vec<u8> = Vec::with_capacity(set.lines() as usize * LINE);
    bytes.extend(members.iter().flat_map(|(_, id)| id.to_ne_bytes()));
    bytes.resize(set.member_lines() as usize * LINE, 0);
    if set.slots > 0 {
        let endpoints: Vec<Endpoint> = members.iter().map(|(endpoint, _)| *endpoint).collect();
        let mut slots = vec![0_u16; set.slots as usize];
        let mut next = vec![0_u32; endpoints.len()];
        maglev::fill(&endpoints, &mut slots, &mut next);
        // A slot has one byte if indexes fit into it: such a set takes half the lines.
        if set.members <= NARROW {
            bytes.extend(slots.iter().map(|slot| *slot as u8));
        } else {
            bytes.extend(slots.iter().flat_map(|slot| slot.to_ne_bytes()));
        }
        bytes.resize(set.lines() as usize * LINE, 0);
    }
    let (lines, _) = bytes.as_chunks::<LINE>();
    lines.to_vec()
}

/// Returns the members in the lines of a set; fewer than the set has if lines are missing.
pub(super) fn members(set: Set, lines: &[Line]) -> Vec<BackendId> {
    let lines = lines.iter().take(set.member_lines() as usize);
    let words = lines.flat_map(|line| {
        let (words, _) = line.as_chunks::<4>();
        words.iter().map(|word| u32::from_ne_bytes(*word))
    });
    words.take(set.members as usize).collect()
}

const _: () = assert!(MEMBERS_PER_LINE as usize * size_of::<BackendId>() == LINE);

#[cfg(test)]
mod tests {
    use super::*;
    use lb_common::addr::{Ip, Port};

    fn endpoints(count: u32) -> Vec<(Endpoint, BackendId)> {
        let endpoint =
            |n: u32| Endpoint::new(Ip::v4((0x0a00_0000 | n).to_be_bytes()), Port::new(80));
        (0..count).map(|n| (endpoint(n), n + 7)).collect()
    }

    #[test]
    fn lines_fit_the_shape_and_give_the_members_back() {
        for count in [1, 2, 16, 17, 256, 257] {
            let wanted = endpoints(count);
            let set = shape(3, count);
            let lines = lines(&wanted);
            assert_eq!(lines.len() as u32, set.lines(), "{count} members");
            let ids: Vec<BackendId> = wanted.iter().map(|(_, id)| *id).collect();
            assert_eq!(members(set, &lines), ids);
        }
    }

    #[test]
    fn every_member_has_its_share_of_slots() {
        let set = shape(0, 3);
        let lines = lines(&endpoints(3));
        let slots = lines[set.member_lines() as usize..].as_flattened();
        for member in 0..3_u8 {
            let taken = slots[..set.slots as usize].iter().filter(|slot| **slot == member);
            let share = taken.count();
            assert!((99..=104).contains(&share), "{share} slots of {}", set.slots);
        }
    }
}
