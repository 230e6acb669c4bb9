//! Independent work on parallel threads: each piece waits for its own answer only.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Result, anyhow};

/// Runs all closures, each on a thread of its own. Returns their results in order, or the first error.
pub fn join_all<T: Send>(
    all: impl IntoIterator<Item = impl FnOnce() -> Result<T> + Send>,
) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|work| scope.spawn(work)).collect();
        let ends =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|it| resume_unwind(it)));
        ends.collect()
    })
}

/// Runs `work`; a panic is an error with its message. Without it, a thread that panics never comes to the barrier at
/// which others wait, and the test waits for ever.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(anyhow!("{}", message(&*panic))))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

/// Locks a value that threads share, also if one of them has panicked.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn all_are_under_way_together_and_keep_their_order() {
        let all_are_here = Barrier::new(3);
        let work = (0..3).map(|number| {
            let all_are_here = &all_are_here;
            move || {
                let _leader = all_are_here.wait();
                Ok(number)
            }
        });
        assert_eq!(join_all(work).unwrap(), [0, 1, 2]);
    }

    #[test]
    fn panic_is_an_error_with_its_message() {
        let error = caught(|| -> Result<()> { panic!("number {}", 3) }).unwrap_err();
        assert_eq!(error.to_string(), "number 3");
    }

    #[test]
    fn first_error_is_reported() {
        let all = [Ok(()), Err("second"), Err("third")];
        let error = join_all(all.map(|it| move || it.map_err(anyhow::Error::msg))).unwrap_err();
        assert_eq!(error.to_string(), "second");
    }
}
