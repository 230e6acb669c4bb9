//! Interfaces to which programs cannot be attached, with the time of the first failure and the last error.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Time after which a failing interface is reported to operators, and the others no longer wait for it. It is retried
/// every second for as long as it exists.
const PATIENCE: Duration = Duration::from_secs(5);

/// The failing interfaces, by index.
#[derive(Debug, Default)]
pub(super) struct Failures(BTreeMap<u32, DeviceFailure>);

/// The failure to attach programs to an interface.
#[derive(Debug)]
struct DeviceFailure {
    since: Instant,
    name: String,
    error: String,
}

impl Failures {
    /// Records the error of the last attempt. Returns whether it is the first one.
    pub(super) fn record(&mut self, index: u32, name: &str, error: &str, now: Instant) -> bool {
        let (name, error) = (name.to_owned(), error.to_owned());
        let since = self.0.get(&index).map(|earlier| earlier.since);
        drop(self.0.insert(index, DeviceFailure { since: since.unwrap_or(now), name, error }));
        since.is_none()
    }

    /// Forgets an interface that has its programs now.
    pub(super) fn forget(&mut self, index: u32) {
        drop(self.0.remove(&index));
    }

    /// Forgets all interfaces except these, and returns their indices.
    pub(super) fn take_others(&mut self, indices: &BTreeSet<u32>) -> Vec<u32> {
        self.0.extract_if(.., |index, _| !indices.contains(index)).map(|(index, _)| index).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether every failing interface has failed for so long that the others need not wait.
    pub(super) fn are_old(&self, now: Instant) -> bool {
        self.0.values().all(|failure| failure.is_old(now))
    }

    /// Returns a sentence for each interface that has failed for long.
    pub(super) fn problems(&self, now: Instant) -> Vec<String> {
        let old = self.0.values().filter(|failure| failure.is_old(now));
        let sentence = |DeviceFailure { name, error, .. }: &DeviceFailure| {
            format!(
                "interface {name}: programs cannot be attached, so its packets reach no Service: {error}; \
                 the agent retries every second: remove the cause that the error names"
            )
        };
        old.map(sentence).collect()
    }
}

impl DeviceFailure {
    fn is_old(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lasting_refusal_of_programs_is_a_problem_until_resolved() {
        let (mut failures, began) = (Failures::default(), Instant::now());
        assert!(failures.record(7, "eth0", "no memory", began));
        assert!(!failures.are_old(began) && failures.problems(began).is_empty());
        let later = began + PATIENCE;
        assert!(!failures.record(7, "uplink", "a pin is in the way", later), "it failed before");
        assert!(failures.are_old(later));
        let [problem] = failures.problems(later).try_into().unwrap();
        assert!(problem.contains("interface uplink: ") && problem.contains("a pin is in the way"));
        assert!(failures.take_others(&BTreeSet::from([7])).is_empty());
        failures.record(8, "pod", "no memory", later);
        assert!(!failures.are_old(later), "the others wait for the second one");
        assert_eq!(failures.take_others(&BTreeSet::from([7])), [8]);
        failures.forget(7);
        assert!(failures.is_empty() && failures.are_old(later));
    }
}
