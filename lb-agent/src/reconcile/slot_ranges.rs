//! Allocation of the lines of `MAGLEV`: best fit over merged free ranges, each step in logarithmic time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A run of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Range {
    /// Index of the first line.
    pub(super) line: u32,
    /// Number of lines; never 0.
    pub(super) lines: u32,
}

/// The lines of the map: free, in use, or in their grace period.
#[derive(Debug, Default)]
pub(super) struct SlotRanges {
    by_line: BTreeMap<u32, u32>,
    by_length: BTreeSet<(u32, u32)>,
    retired: VecDeque<(Duration, Range)>,
    used: u32,
}

impl SlotRanges {
    /// Makes the state of a map with `limit` lines, where `used` ranges are in use (sorted; they may overlap).
    pub(super) fn new(limit: u32, used: &BTreeSet<Range>) -> Self {
        let mut lines = Self::default();
        let mut next = 0;
        for range in used {
            if range.line > next {
                lines.insert(Range { line: next, lines: range.line.min(limit) - next });
            }
            // Ranges of a damaged map may overlap or exceed it.
            next = next.max(range.line.saturating_add(range.lines)).min(limit);
        }
        if next < limit {
            lines.insert(Range { line: next, lines: limit - next });
        }
        lines.used = limit - lines.by_line.values().sum::<u32>();
        lines
    }

    /// Returns the number of lines in use or in their grace period.
    pub(super) const fn used(&self) -> u32 {
        self.used
    }

    /// Takes a run of lines from the shortest free range that fits; `None` if there is none.
    pub(super) fn take(&mut self, lines: u32) -> Option<Range> {
        // The shortest range that fits is taken, so that long ranges stay whole for large sets.
        let (length, line) = *self.by_length.range((lines, 0)..).next()?;
        self.by_length.remove(&(length, line));
        self.by_line.remove(&line);
        if length > lines {
            self.insert(Range { line: line + lines, lines: length - lines });
        }
        self.used += lines;
        Some(Range { line, lines })
    }

    /// Frees lines that no packet can have seen.
    pub(super) fn give(&mut self, range: Range) {
        self.used -= range.lines;
        let mut merged = range;
        // The range is joined with free neighbours, so that long ranges remain available.
        if let Some((&line, &lines)) = self.by_line.range(..range.line).next_back()
            && line + lines == range.line
        {
            self.forget(Range { line, lines });
            merged = Range { line, lines: lines + merged.lines };
        }
        let end = range.line + range.lines;
        if let Some(&lines) = self.by_line.get(&end) {
            self.forget(Range { line: end, lines });
            merged.lines += lines;
        }
        self.insert(merged);
    }

    /// Frees lines at `due`; packets may read them until then.
    pub(super) fn retire(&mut self, range: Range, due: Duration) {
        self.retired.push_back((due, range));
    }

    /// Frees the lines that are due. Returns whether there were any.
    pub(super) fn release(&mut self, now: Duration) -> bool {
        let mut any = false;
        while let Some((due, range)) = self.retired.front().copied()
            && due <= now
        {
            self.retired.pop_front();
            self.give(range);
            any = true;
        }
        any
    }

    /// Returns the number of lines in their grace period.
    pub(super) fn waiting(&self) -> u32 {
        self.retired.iter().map(|(_, range)| range.lines).sum()
    }

    /// Reports whether lines are in their grace period.
    pub(super) fn is_waiting(&self) -> bool {
        !self.retired.is_empty()
    }

    fn insert(&mut self, Range { line, lines }: Range) {
        self.by_line.insert(line, lines);
        self.by_length.insert((lines, line));
    }

    fn forget(&mut self, Range { line, lines }: Range) {
        self.by_line.remove(&line);
        self.by_length.remove(&(lines, line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_coalesce_in_any_order() {
        let mut lines = SlotRanges::new(10, &BTreeSet::new());
        let taken: Vec<Range> = (0..5).map(|_| lines.take(2).unwrap()).collect();
        assert_eq!(lines.take(1), None);
        for at in [1, 3, 0, 4, 2] {
            lines.give(taken[at]);
        }
        assert_eq!(lines.take(10), Some(Range { line: 0, lines: 10 }));
        assert_eq!(lines.used(), 10);
    }

    #[test]
    fn lines_read_back_are_not_handed_out() {
        let used = [(2, 3), (4, 2), (9, 5)].map(|(line, lines)| Range { line, lines });
        let mut lines = SlotRanges::new(12, &BTreeSet::from(used));
        assert_eq!(lines.used(), 7);
        assert_eq!(lines.take(2), Some(Range { line: 0, lines: 2 }));
        assert_eq!(lines.take(3), Some(Range { line: 6, lines: 3 }));
        assert_eq!(lines.take(1), None);
    }

    #[test]
    fn retired_lines_come_back_when_they_are_due() {
        let mut lines = SlotRanges::new(4, &BTreeSet::new());
        let range = lines.take(4).unwrap();
        lines.retire(range, Duration::from_secs(1));
        assert!(!lines.release(Duration::from_millis(999)));
        assert_eq!(lines.take(1), None);
        assert!(lines.release(Duration::from_secs(1)));
        assert_eq!(lines.take(4), Some(range));
    }
}
