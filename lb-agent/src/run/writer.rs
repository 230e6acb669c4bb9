//! Applies operations in order. What fails is kept, with all that comes after it, and tried again:
//! the maps are always a prefix of what the book says.

use std::collections::VecDeque;

use tracing::{error, info};

use crate::maps::{Error as Failure, Maps};
use crate::metrics::Numbers;
use crate::program::Op;

/// The maps, and what they still have to take.
#[derive(Debug)]
pub(super) struct Writer {
    maps: Maps,
    queue: VecDeque<Op>,
    is_failing: bool,
}

impl Writer {
    pub(super) const fn new(maps: Maps) -> Self {
        Self { maps, queue: VecDeque::new(), is_failing: false }
    }

    /// Applies operations after those that wait.
    pub(super) fn write(&mut self, ops: Vec<Op>, numbers: &Numbers) {
        self.queue.extend(ops);
        if !self.is_failing {
            self.drain(numbers);
        }
    }

    /// Tries what failed again.
    pub(super) fn retry(&mut self, numbers: &Numbers) {
        if self.is_failing {
            self.drain(numbers);
        }
    }

    /// Whether everything is in the maps.
    pub(super) fn is_done(&self) -> bool {
        self.queue.is_empty()
    }

    fn fail(&mut self, failure: &Failure) {
        if !self.is_failing {
            let (error, waiting) = (crate::chain(failure), self.queue.len());
            error!(error, waiting, "a map refused a write; trying again every second");
        }
        self.is_failing = true;
    }

    fn drain(&mut self, numbers: &Numbers) {
        let mut done = 0;
        while let Some(op) = self.queue.front() {
            if let Err(failure) = self.maps.apply(op) {
                Numbers::add(&numbers.failures, 1);
                Numbers::add(&numbers.operations, done);
                self.fail(&failure);
                return;
            }
            done += 1;
            drop(self.queue.pop_front());
        }
        Numbers::add(&numbers.operations, done);
        if self.is_failing {
            info!("the maps take writes again");
        }
        self.is_failing = false;
    }
}
