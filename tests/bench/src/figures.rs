//! Figures of many rounds: the median and the quartiles.

use serde::{Deserialize, Serialize};

/// The values of one variant, in the order of the rounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Figure(Vec<f64>);

/// The median of several values, with the first and the third quartile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Figure {
    /// Adds the value of a round.
    pub(super) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The number of values.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Median and quartiles of all values. A quartile between two values is interpolated linearly, so that with few
    /// values both quartiles are equally far from the median.
    pub(super) fn spread(&self) -> Spread {
        let sorted = self.sorted();
        let at = |share: f64| {
            let place = sorted.len().saturating_sub(1) as f64 * share;
            let [below, above] = [place.floor(), place.ceil()].map(|index| value(&sorted, index));
            below + (above - below) * place.fract()
        };
        Spread::rounded([0.25, 0.5, 0.75].map(at))
    }

    /// The 99th percentile if there are enough values for it, else the largest value; as its range, the 95th percentile
    /// and the largest value.
    pub(super) fn late(&self) -> Spread {
        let sorted = self.sorted();
        // Floating-point error may make the product a little too large, and `ceil` would then take the next value.
        let at = |share: f64| value(&sorted, (sorted.len() as f64 * share - 1e-6).ceil() - 1.0);
        Spread::rounded([0.95, if self.is_many() { 0.99 } else { 1.0 }, 1.0].map(at))
    }

    /// Whether there are a hundred values or more: with fewer, the slowest hundredth is the slowest value.
    pub(super) const fn is_many(&self) -> bool {
        self.len() >= 100
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The ratio of this figure to another, round by round, after `empty` is subtracted from both.
    pub(super) fn times(&self, other: &Self, empty: Option<&Self>) -> Self {
        let less =
            |round: usize| empty.and_then(|empty| empty.0.get(round)).copied().unwrap_or(0.0);
        let pairs = self.0.iter().zip(&other.0).enumerate();
        // A reference whose cost is close to zero gives no ratio.
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

/// The value at an index; 0 if the index is out of range.
#[expect(clippy::cast_sign_loss, reason = "below 0 is 0")]
fn value(sorted: &[f64], index: f64) -> f64 {
    sorted.get(index as usize).copied().unwrap_or_default()
}

impl Spread {
    fn rounded(values: [f64; 3]) -> Self {
        let [low, median, high] = values.map(|value| (value * 1000.0).round() / 1000.0);
        Self { median, low, high }
    }

    /// Whether the interquartile ranges of both overlap: then neither counts as larger.
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
    fn quarters_of_few_values_lie_as_far_below_as_above() {
        for (values, low, high) in
            [(3, 1.5, 2.5), (5, 2.0, 4.0), (6, 2.25, 4.75), (7, 2.5, 5.5), (9, 3.0, 7.0)]
        {
            // Inserted in descending order: the spread must sort.
            let figure: Figure = (1..=values).rev().map(f64::from).collect();
            let median = f64::midpoint(1.0, f64::from(values));
            assert_eq!(figure.spread(), Spread { median, low, high }, "{values} values");
        }
        let spread = |values: &[f64]| values.iter().copied().collect::<Figure>().spread();
        assert_eq!(spread(&[4.0]), Spread { median: 4.0, low: 4.0, high: 4.0 });
        assert_eq!(spread(&[]), Spread { median: 0.0, low: 0.0, high: 0.0 });
    }

    #[test]
    fn a_hundredth_is_reported_only_of_a_hundred() {
        let late = |values: u32| (1..=values).map(f64::from).collect::<Figure>().late();
        assert_eq!(late(50), Spread { median: 50.0, low: 48.0, high: 50.0 });
        assert_eq!(late(100), Spread { median: 99.0, low: 95.0, high: 100.0 });
        assert_eq!(late(1_200), Spread { median: 1_188.0, low: 1_140.0, high: 1_200.0 });
        assert_eq!(late(0), Spread { median: 0.0, low: 0.0, high: 0.0 });
    }

    #[test]
    fn ratios_are_those_of_a_round() {
        let (one, two) = (Figure(vec![20.0, 200.0]), Figure(vec![10.0, 100.0]));
        assert_eq!(one.times(&two, None).0, [2.0, 2.0]);
        let empty = Figure(vec![5.0, 50.0]);
        assert_eq!(one.times(&two, Some(&empty)).0, [3.0, 3.0]);
    }
}
