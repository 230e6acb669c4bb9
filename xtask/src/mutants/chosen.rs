//! The selection of a mutant, added to the copy of lb-common that `cargo xtask mutants` builds.

use core::intrinsics::const_eval_select;
use std::sync::OnceLock;

static CHOSEN: OnceLock<u32> = OnceLock::new();

/// Whether mutant `number` is selected; in constant evaluation, never.
#[inline]
pub const fn is(number: u32) -> bool {
    const_eval_select((number,), never, now)
}

const fn never(_number: u32) -> bool {
    false
}

fn now(number: u32) -> bool {
    let read = || std::env::var("LB_MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    *CHOSEN.get_or_init(read) == number
}

/// A default value. It may appear in a `const fn`, where it must not be evaluated in a constant.
pub const fn made<T: Default>() -> T {
    const_eval_select((), unmade, T::default)
}

const fn unmade<T>() -> T {
    panic!("no mutant is selected in constant evaluation")
}
