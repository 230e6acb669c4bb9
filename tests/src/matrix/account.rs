//! The account of many worlds: the number of questions that each proxy and setting answered as expected, and the
//! deviations.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::setup::Setup;
use crate::campaign;
use crate::join_all::locked;

/// The number of questions, and a line for each outcome that was not as expected.
pub type Compared = (usize, Vec<String>);

/// The sums by proxy and setting.
#[derive(Debug, Default)]
pub struct Account(Mutex<BTreeMap<String, Compared>>);

impl Account {
    /// Adds the outcomes of the questions in one world.
    pub fn add(&self, setup: &Setup, (asked, wrong): Compared) {
        let add = |sum: &mut Compared| {
            sum.0 += asked;
            sum.1.extend(wrong);
        };
        add(locked(&self.0).entry(setup.name()).or_default());
    }

    /// Prints the figures of each proxy and setting, and returns their sum.
    pub fn print(self, what: &str) -> Compared {
        let mut all = Compared::default();
        for (name, (asked, wrong)) in locked(&self.0).iter() {
            let right = format!("{}/{asked}", asked.saturating_sub(wrong.len()));
            campaign::figure(
                &format!("{what} answered as the contract says, {name}"),
                right,
                "questions",
            );
            all.0 += asked;
            all.1.extend_from_slice(wrong);
        }
        all
    }
}
