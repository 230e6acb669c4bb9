//! The result of a part on its way through a function of the kernel.

use super::{load_result, store_result};
use crate::event::{DropReason, Verdict};
use crate::forward::{Scratch, Step};

#[test]
fn result_of_a_part_is_the_same_behind_its_function() {
    let before = Verdict::Drop(DropReason::BadTable);
    for step in [Ok(()), Err(Verdict::Drop(DropReason::NoRoute))] {
        let mut scratch = Scratch { verdict: before, ..Scratch::default() };
        let ended = store_result(step, &mut scratch);
        let after: Step<()> = load_result(ended, &scratch);
        assert_eq!(after, step);
    }
}
