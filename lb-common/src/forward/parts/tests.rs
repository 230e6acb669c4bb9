//! The result of a part on its way through a function of the kernel.

use super::{hand_over, take_over};
use crate::event::{DropReason, Verdict};
use crate::forward::{Scratch, Step};

#[test]
fn result_of_a_part_is_the_same_behind_its_function() {
    let before = Verdict::Drop(DropReason::BadTable);
    for step in [Ok(()), Err(Verdict::Drop(DropReason::NoRoute))] {
        let mut scratch = Scratch { verdict: before, ..Scratch::default() };
        let ended = hand_over(step, &mut scratch);
        let after: Step<()> = take_over(ended, &scratch);
        assert_eq!(after, step);
    }
}
