//! Progress: a line when a long step starts, with the time to expect, and one when it ends.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;

/// The steps that have begun and not ended, the innermost last.
static OPEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Does `work`, saying what it is and how long it should take before, and how long it took after.
pub(crate) fn step<T>(
    what: impl Display,
    expected: &str,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    println!("==> {what} ({expected})");
    let start = Instant::now();
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).push(what.to_string());
    let result = work();
    drop(OPEN.lock().unwrap_or_else(PoisonError::into_inner).pop());
    let outcome = if result.is_ok() { "done" } else { "FAILED" };
    println!("    {what}: {outcome} in {:.1} s", start.elapsed().as_secs_f64());
    result
}

/// Returns the step that is under way.
pub(crate) fn current() -> Option<String> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).last().cloned()
}

/// Says that `what` is there already, so that an idle set-up shows what it looked at.
pub(crate) fn present(what: impl Display) {
    println!("  = {what}");
}
