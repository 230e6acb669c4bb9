//! Programs of others that displace ours: how often our place is restored, and when an operator is told.
//!
//! Restoring costs no packet, but the machine some milliseconds, and an agent like ours would answer in kind. So a
//! program that displaces ours once is displaced at once. One that insists gets ever more time, and is named in
//! `status`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Until the place is taken back a second time; doubled with each further time.
const FIRST: Duration = Duration::from_secs(2);
/// The longest of these.
const LAST: Duration = Duration::from_secs(30);
/// A program that has not come for so long begins anew.
const CALM: Duration = Duration::from_mins(1);

/// The events at places of ours, by pin.
#[derive(Debug, Default)]
pub(super) struct Displaced(BTreeMap<PathBuf, Place>);

#[derive(Debug)]
struct Place {
    /// When it was taken back last, and how long the next time has to wait.
    taken: Instant,
    patience: Duration,
    /// When somebody else was seen there last.
    seen: Instant,
    /// How an operator is told of it, once somebody insists.
    problem: Option<String>,
}

impl Displaced {
    /// Somebody else is where ours belongs. Says whether to take the place back now.
    pub(super) fn see(
        &mut self,
        path: &Path,
        now: Instant,
        problem: impl FnOnce() -> String,
    ) -> bool {
        let calm = |place: &Place| now.duration_since(place.seen) >= CALM;
        match self.0.get_mut(path).filter(|place| !calm(place)) {
            None => {
                let place = Place { taken: now, patience: FIRST, seen: now, problem: None };
                drop(self.0.insert(path.to_owned(), place));
                true
            }
            Some(place) => {
                place.seen = now;
                place.problem = Some(problem());
                let is_time = now.duration_since(place.taken) >= place.patience;
                if is_time {
                    (place.taken, place.patience) = (now, (place.patience * 2).min(LAST));
                }
                is_time
            }
        }
    }

    /// The place is no more.
    pub(super) fn forget(&mut self, path: &Path) {
        drop(self.0.remove(path));
    }

    /// The programs that insist, or did a moment ago.
    pub(super) fn problems(&mut self, now: Instant) -> Vec<String> {
        self.0.retain(|_, place| now.duration_since(place.seen) < CALM);
        self.0.values().filter_map(|place| place.problem.clone()).collect()
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
