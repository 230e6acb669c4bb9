//! Other programs that displace ours: how often the place is taken back, and when an operator is told.
//!
//! Taking a place back costs no packet, but some milliseconds of the machine, and an agent like this one would respond
//! in kind. So a program that displaces ours once is displaced at once. One that keeps doing so is displaced ever more
//! rarely, and `status` names it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time until the place is taken back for the second time; doubled each further time.
const FIRST: Duration = Duration::from_secs(2);
/// The longest of these times.
const LAST: Duration = Duration::from_secs(30);
/// A program that stayed away for this long counts as new.
const CALM: Duration = Duration::from_mins(1);

/// Places that were displaced, by pin.
#[derive(Debug, Default)]
pub(super) struct Displaced(BTreeMap<PathBuf, Displacement>);

#[derive(Debug)]
struct Displacement {
    /// Time when the place was taken back last, and the wait before the next time.
    taken: Instant,
    patience: Duration,
    /// Time when another program was last seen in the place.
    seen: Instant,
    /// The message for operators, once the program has come back.
    problem: Option<String>,
}

impl Displaced {
    /// Records that another program is in our place. Returns whether to take the place back now.
    pub(super) fn see(
        &mut self,
        path: &Path,
        now: Instant,
        problem: impl FnOnce() -> String,
    ) -> bool {
        // A place that was undisturbed for a while starts with the short delay again.
        let calm = |displacement: &Displacement| now.duration_since(displacement.seen) >= CALM;
        match self.0.get_mut(path).filter(|displacement| !calm(displacement)) {
            None => {
                let displacement =
                    Displacement { taken: now, patience: FIRST, seen: now, problem: None };
                drop(self.0.insert(path.to_owned(), displacement));
                true
            }
            Some(displacement) => {
                displacement.seen = now;
                displacement.problem = Some(problem());
                let is_time = now.duration_since(displacement.taken) >= displacement.patience;
                if is_time {
                    // Each return takes twice as long, so that two programs do not displace one another in a fast loop.
                    (displacement.taken, displacement.patience) =
                        (now, (displacement.patience * 2).min(LAST));
                }
                is_time
            }
        }
    }

    /// Forgets a place that no longer exists.
    pub(super) fn forget(&mut self, path: &Path) {
        drop(self.0.remove(path));
    }

    /// Returns a message for each program that keeps displacing ours, or did within the last minute.
    pub(super) fn problems(&mut self, now: Instant) -> Vec<String> {
        self.0.retain(|_, displacement| now.duration_since(displacement.seen) < CALM);
        self.0.values().filter_map(|displacement| displacement.problem.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_once_is_no_problem_and_who_insists_is_one_at_once() {
        let (mut displaced, path, began) =
            (Displaced::default(), Path::new("2-ingress"), Instant::now());
        let mut see = |seconds: u64| {
            let now = began + Duration::from_secs(seconds);
            let taken = displaced.see(path, now, || "somebody".to_owned());
            (taken, displaced.problems(now).len())
        };
        assert_eq!(see(0), (true, 0));
        assert_eq!(see(1), (false, 1), "two seconds are not over");
        assert_eq!(see(3), (true, 1));
        assert_eq!(see(6), (false, 1), "four now");
        assert_eq!(see(7), (true, 1));
        for second in (10..60).step_by(3) {
            see(second);
        }
        assert!(!see(61).0 || !see(64).0, "half a minute at last");
        assert_eq!(see(200), (true, 0), "who has been away begins anew");
        assert!(displaced.problems(began + Duration::from_mins(5)).is_empty());
    }
}
