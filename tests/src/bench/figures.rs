//! What many rounds say together: the middle and the quarters beside it.

use serde::{Deserialize, Serialize};

/// The values of one variant, in the order of the rounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Figure(Vec<f64>);

/// The middle of several values, and the values that a quarter of them lie below and above.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Figure {
    /// Takes the value of a round.
    pub(super) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    /// How many rounds.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// All rounds in three numbers.
    pub(super) fn spread(&self) -> Spread {
        self.at([0.25, 0.5, 0.75])
    }

    #[expect(clippy::cast_sign_loss, reason = "a share of a length is not negative")]
    fn at(&self, shares: [f64; 3]) -> Spread {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let [low, median, high] = shares.map(|share| {
            let last = sorted.len().saturating_sub(1) as f64;
            let value = sorted.get((last * share).round() as usize).copied().unwrap_or_default();
            (value * 1000.0).round() / 1000.0
        });
        Spread { median, low, high }
    }

    /// What 99 of 100 do not exceed; beside it what 95 do not, and the largest.
    pub(super) fn late(&self) -> Spread {
        self.at([0.95, 0.99, 1.0])
    }

    /// How many times as much as another, round by round, after `empty` is taken from both.
    pub(super) fn times(&self, other: &Self, empty: Option<&Self>) -> Self {
        let less =
            |round: usize| empty.and_then(|empty| empty.0.get(round)).copied().unwrap_or(0.0);
        let pairs = self.0.iter().zip(&other.0).enumerate();
        // A reference that costs next to nothing gives no ratio.
        let ratio = |(round, (one, two)): (usize, (&f64, &f64))| {
            (one - less(round)).max(0.0) / (two - less(round)).max(1.0)
        };
        Self(pairs.map(ratio).collect())
    }
}

impl FromIterator<f64> for Figure {
    fn from_iter<T: IntoIterator<Item = f64>>(iter: T) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl Spread {
    /// Whether the quarters of both have a value in common: then neither is said to be larger.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

#[cfg(test)]
mod tests {
    use super::{Figure, Spread};

    #[test]
    fn one_disturbed_round_moves_no_median() {
        let figure = Figure(vec![10.0, 11.0, 900.0, 10.0, 12.0]);
        assert_eq!(figure.spread(), Spread { median: 11.0, low: 10.0, high: 12.0 });
    }

    #[test]
    fn ratios_are_those_of_a_round() {
        let (one, two) = (Figure(vec![20.0, 200.0]), Figure(vec![10.0, 100.0]));
        assert_eq!(one.times(&two, None).0, [2.0, 2.0]);
        let empty = Figure(vec![5.0, 50.0]);
        assert_eq!(one.times(&two, Some(&empty)).0, [3.0, 3.0]);
    }
}
