//! Other programs that displace ours: how often the place is taken back, and when the displacement is reported to
//! operators.
//!
//! Taking a place back loses no packet but takes some milliseconds of CPU time, and a similar agent would take it back
//! in turn. So the agent takes its place back at once from a program that displaces ours for the first time, and waits
//! longer each time that the same program does it again.
//!
//! The kernel appends programs by default (`BPF_F_BEFORE` is not set, `kernel/bpf/mprog.c`): the owner of a program
//! before ours asked for that place, and the program can end the chain. So it is reported from the first time on.

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
    /// The message for operators.
    problem: String,
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
                let (patience, problem) = (FIRST, problem());
                let displacement = Displacement { taken: now, patience, seen: now, problem };
                drop(self.0.insert(path.to_owned(), displacement));
                true
            }
            Some(displacement) => {
                displacement.seen = now;
                displacement.problem = problem();
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

    /// Returns a message for each program that displaces ours, or did so within the last minute.
    pub(super) fn problems(&mut self, now: Instant) -> Vec<String> {
        self.0.retain(|_, displacement| now.duration_since(displacement.seen) < CALM);
        self.0.values().map(|displacement| displacement.problem.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sees a program in our place at these seconds. Returns whether to take the place back, and the number of
    /// problems.
    fn seen_at<const N: usize>(seconds: [u64; N]) -> [(bool, usize); N] {
        let (mut displaced, path, began) =
            (Displaced::default(), Path::new("2-ingress"), Instant::now());
        seconds.map(|second| {
            let now = began + Duration::from_secs(second);
            let taken = displaced.see(path, now, || "a foreign program".to_owned());
            (taken, displaced.problems(now).len())
        })
    }

    #[test]
    fn foreign_program_is_a_problem_at_once() {
        let seen = seen_at([0, 1, 200]);
        assert_eq!(seen, [(true, 1), (false, 1), (true, 1)], "a pause resets the patience");
    }

    #[test]
    fn place_is_taken_back_ever_more_rarely() {
        let taken = seen_at([0, 1, 3, 6, 7]).map(|(taken, _)| taken);
        assert_eq!(taken, [true, false, true, false, true], "after 2 s, then after 4 s");
        let seconds: Vec<u64> = (0..300).collect();
        let seconds: [u64; 300] = seconds.try_into().unwrap();
        let taken = seen_at(seconds).iter().filter(|(taken, _)| *taken).count();
        assert_eq!(taken, 13, "at 0, 2, 6, 14, 30 s, and every 30 s after that");
    }

    #[test]
    fn problem_ends_a_minute_after_the_program() {
        let (mut displaced, path, began) =
            (Displaced::default(), Path::new("2-ingress"), Instant::now());
        displaced.see(path, began, || "a foreign program".to_owned());
        assert_eq!(displaced.problems(began + Duration::from_secs(59)).len(), 1);
        assert!(displaced.problems(began + CALM).is_empty());
    }
}
