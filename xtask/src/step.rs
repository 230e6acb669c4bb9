//! Progress: a line when a long step starts, with the time to expect, and one when it ends.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;

/// The steps under way, the innermost last.
static OPEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Runs `work`; prints its name and its expected time before, and the time it took after.
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

/// Returns the name of the innermost step under way.
pub(crate) fn current() -> Option<String> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner).last().cloned()
}

/// Reports that `what` is already installed, so that an idle set-up shows what it checked.
pub(crate) fn present(what: impl Display) {
    println!("  = {what}");
}
