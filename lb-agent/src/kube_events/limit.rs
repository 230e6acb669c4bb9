//! The limits that protect the API server.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::EventContent;

/// Number of Events that may be written at once.
const BURST: u32 = 25;
/// Time after which one more may be written.
const REFILL: Duration = Duration::from_mins(1);
/// Time during which the same Event is not written again: the API server keeps one for an hour by default.
const SILENCE: Duration = Duration::from_hours(1);
/// Largest number of Events that are remembered as written.
const REMEMBERED: usize = 4_096;

/// The Events that were written, and the number that may still be written.
#[derive(Debug)]
pub(super) struct Limit {
    tokens: u32,
    filled: Instant,
    said: BTreeMap<EventContent, Instant>,
}

impl Limit {
    pub(super) const fn new(now: Instant) -> Self {
        Self { tokens: BURST, filled: now, said: BTreeMap::new() }
    }

    pub(super) fn admits(&mut self, content: &EventContent, now: Instant) -> bool {
        self.said.retain(|_, said| now.duration_since(*said) < SILENCE);
        let periods = now.duration_since(self.filled).as_secs() / REFILL.as_secs();
        if periods > 0 {
            self.tokens = BURST.min(self.tokens.saturating_add(periods as u32));
            // The rest of a period that has begun counts towards the next one.
            self.filled += REFILL * periods as u32;
        }
        // A token bucket, and no repetition for a while: neither a fault of many Services nor one that stays may flood
        // the API server.
        if self.tokens == 0 || self.said.contains_key(content) || self.said.len() >= REMEMBERED {
            return false;
        }
        self.tokens -= 1;
        self.said.insert(content.clone(), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_events::tests::content;

    #[test]
    fn equal_events_are_sent_once_and_all_events_are_limited() {
        let start = Instant::now();
        let mut limit = Limit::new(start);
        assert!(limit.admits(&content("a"), start));
        assert!(!limit.admits(&content("a"), start));
        let more = (0..100).filter(|n| limit.admits(&content(&n.to_string()), start)).count();
        assert_eq!(more, BURST as usize - 1);
        assert!(limit.admits(&content("b"), start + REFILL));
        assert!(!limit.admits(&content("c"), start + REFILL));
        assert!(limit.admits(&content("a"), start + SILENCE), "said long ago");
    }
}
