//! The turns of a measurement: each turn measures every mode once, and plain routing again at its end (A B C A, A B C
//! A).
//!
//! A turn does not count when other processes used the CPUs, or when plain routing at its end differs too much from
//! plain routing at its start. It is repeated as long as most turns are calm.

use std::time::Duration;

use anyhow::Result;

use super::super::figures::Figure;
use super::super::load::{self, Usage};
use super::super::results::Row;
use super::generator::Count;
use super::proxy_kind::{ProxyKind, Question, Route};
use super::site::{Services, Site};

/// A turn counts only if the rate of plain routing at its end differs by at most this share from the rate at its start.
const CALM: f64 = 0.15;

/// One measurement of every mode.
struct Turn {
    counts: Vec<(ProxyKind, Count)>,
    /// The second measurement of plain routing, at the end of the turn.
    again: Count,
    is_calm: bool,
}

/// All turns of a question.
pub(super) struct Series {
    question: Question,
    services: u32,
    turns: Vec<Turn>,
}

impl Series {
    pub(super) const fn new(question: Question, services: u32) -> Self {
        Self { question, services, turns: Vec::new() }
    }

    fn disturbed(&self) -> usize {
        self.turns.iter().filter(|turn| !turn.is_calm).count()
    }

    /// Measures every mode once; a disturbed turn is repeated as long as most turns are calm.
    pub(super) fn measure(
        &mut self,
        sites: &[Site],
        services: &Services,
        time: Duration,
    ) -> Result<()> {
        loop {
            let turn = self.turn(sites, services, time)?;
            let is_calm = turn.is_calm;
            self.turns.push(turn);
            if is_calm || !load::is_repeated(self.disturbed(), self.turns.len()) {
                return Ok(());
            }
        }
    }

    fn turn(&self, sites: &[Site], services: &Services, time: Duration) -> Result<Turn> {
        let before = Usage::now()?;
        let serves = |site: &&Site| {
            site.kind.serves(self.question.route) && self.services <= site.kind.most_services()
        };
        let mut counts = Vec::new();
        for site in sites.iter().filter(serves) {
            counts.push((site.kind, site.measure(self.question, services, time)?));
        }
        let (plain, first) = match (sites.first(), counts.first()) {
            (Some(plain), Some((_, first))) => (plain, *first),
            _ => anyhow::bail!("no site to measure"),
        };
        let again = plain.measure(self.question, services, time)?;
        let is_steady = (again.rate / first.rate - 1.0).abs() <= CALM;
        let is_calm = is_steady && before.was_calm(&Usage::now()?);
        Ok(Turn { counts, again, is_calm })
    }

    /// The figures of all turns, for each mode.
    pub(super) fn rows(&self) -> Vec<Row> {
        let dropped = self.disturbed();
        let is_enough = load::are_enough(self.turns.len() - dropped, self.turns.len());
        let counted: Vec<&Turn> =
            self.turns.iter().filter(|turn| turn.is_calm || !is_enough).collect();
        let mut rows = Vec::new();
        let kinds = counted.first().into_iter().flat_map(|turn| &turn.counts);
        for (kind, _) in kinds {
            rows.extend(self.rows_of(*kind, &counted));
        }
        for row in &mut rows {
            row.dropped = if is_enough { dropped } else { 0 };
            row.disturbed = !is_enough;
        }
        rows
    }

    fn rows_of(&self, kind: ProxyKind, turns: &[&Turn]) -> Vec<Row> {
        let Question { route, operation, family } = self.question;
        let services = self.services.to_string();
        let name = if route == Route::Loopback { "generator" } else { kind.name() };
        let labels = [
            ("way", name),
            ("route", route.name()),
            ("operation", operation.name()),
            ("family", family.name()),
            ("services", &services),
        ];
        let find = |turn: &Turn, kind: ProxyKind| {
            turn.counts.iter().find(|(other, _)| *other == kind).map(|(_, count)| *count)
        };
        let counts: Vec<Count> = turns.iter().filter_map(|turn| find(turn, kind)).collect();
        let figure = |pick: &dyn Fn(&Count) -> f64| counts.iter().map(pick).collect::<Figure>();
        let (unit, cpu) = operation.units();
        let rate = Row::new(&labels, "rate", unit, &figure(&|count| count.rate));
        let mut rows = vec![rate.more_is_better()];
        if route != Route::Loopback {
            let ratios =
                turns.iter().filter_map(|turn| ratio(turn, kind, find)).collect::<Figure>();
            let row = Row::new(&labels, "ratio", "x plain routing", &ratios);
            rows.push(row.more_is_better().judged(kind.is_ours()));
        }
        for (index, percent) in [50, 90, 99].into_iter().enumerate() {
            let pick = |count: &Count| Some(count.latency?.get(index).copied().unwrap_or_default());
            let latency: Figure = counts.iter().filter_map(pick).collect();
            if latency.len() > 0 {
                rows.push(Row::new(&labels, &format!("latency {percent} %"), "us", &latency));
            }
        }
        rows.push(Row::new(&labels, "cpu", cpu, &figure(&|count| count.cpu)));
        rows
    }
}

/// The ratio to plain routing of the same turn. Plain routing counts with the mean of its two measurements, because the
/// machine drifts. The ratio of plain routing itself is its drift within a turn: the noise, below which a difference
/// means nothing.
fn ratio(
    turn: &Turn,
    kind: ProxyKind,
    find: impl Fn(&Turn, ProxyKind) -> Option<Count>,
) -> Option<f64> {
    let rate = find(turn, kind)?.rate;
    let plain = find(turn, kind.plain())?.rate;
    Some(match kind {
        ProxyKind::Plain => turn.again.rate / rate,
        ProxyKind::PlainWhole | ProxyKind::OursXdp => rate / plain,
        ProxyKind::Nftables
        | ProxyKind::Iptables
        | ProxyKind::Ours
        | ProxyKind::OursStack
        | ProxyKind::OursSockets
        | ProxyKind::Minimal
        | ProxyKind::MinimalStack => rate / f64::midpoint(plain, turn.again.rate),
    })
}

#[cfg(test)]
mod tests {
    use super::super::generator::Operation;
    use super::*;
    use lb_tests::topology::Family;

    fn turn(ours: f64, is_calm: bool) -> Turn {
        let count =
            |rate| Count { rate, latency: Some([1.0, 2.0, 3.0]), cpu: 4.0, lost: 0, operations: 0 };
        let counts = vec![(ProxyKind::Plain, count(90.0)), (ProxyKind::Ours, count(ours))];
        Turn { counts, again: count(110.0), is_calm }
    }

    fn rows(turns: Vec<Turn>) -> Vec<Row> {
        let question =
            Question { route: Route::PodFar, operation: Operation::Udp, family: Family::V4 };
        Series { question, services: 10, turns }.rows()
    }

    fn ours(rows: &[Row]) -> &Row {
        let is_it = |row: &&Row| row.label("way") == "ours" && row.measure == "ratio";
        rows.iter().find(is_it).unwrap()
    }

    #[test]
    fn disturbed_turns_are_dropped_and_said() {
        let calm = (0..5).map(|_| turn(100.0, true));
        let rows = rows(calm.chain([turn(50.0, false)]).collect());
        let row = ours(&rows);
        assert_eq!((row.spread.median, row.rounds, row.dropped, row.disturbed), (1.0, 5, 1, false));
        assert!(row.judged);
    }

    #[test]
    fn without_calm_turns_all_count_and_the_figure_says_so() {
        let rows = rows(vec![turn(100.0, true), turn(50.0, false), turn(50.0, false)]);
        let row = ours(&rows);
        assert_eq!((row.spread.median, row.rounds, row.disturbed), (0.5, 3, true));
    }
}
