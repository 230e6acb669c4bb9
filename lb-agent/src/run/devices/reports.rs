//! Reports of interfaces that are not served, or whose role may be wrong. Each is logged once.

use tracing::warn;

use crate::node::{Assignment, Identity, NetnsView, ambiguous, unreadable, unserved};

/// Interfaces that an operator should look at.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Names of interfaces whose role is a guess.
    pub(super) ambiguous: Vec<String>,
    /// Names of interfaces whose packets the programs cannot parse.
    unreadable: Vec<String>,
    /// Sentences about interfaces that routes use and that have no programs, with the reason.
    pub(super) unserved: Vec<String>,
    /// Sentences about interfaces of pods by which packets to Services bypass the programs.
    pub(super) hidden: Vec<String>,
}

impl Reports {
    /// Makes the reports for the current interfaces and routes, and the assignments that follow from them.
    pub(super) fn of(view: &NetnsView, identity: &Identity, served: &[Assignment]) -> Self {
        Self {
            ambiguous: ambiguous(view, identity),
            unreadable: unreadable(view, identity),
            unserved: unserved(view, identity, served),
            hidden: Vec::new(),
        }
    }

    /// Replaces earlier reports, and logs the new ones.
    pub(super) fn replace(mut self, earlier: &mut Self) {
        // These reports are made at other times than the rest.
        self.hidden = std::mem::take(&mut earlier.hidden);
        for interface in self.ambiguous.iter().filter(|it| !earlier.ambiguous.contains(it)) {
            warn!(
                interface,
                "treated as a pod interface, but it may lead outside; name all external interfaces with \
                 --external-device, or all pod interfaces with --pod-device"
            );
        }
        for interface in self.unreadable.iter().filter(|it| !earlier.unreadable.contains(it)) {
            warn!(
                interface,
                "not served: its packets start with neither an Ethernet nor an IP header"
            );
        }
        log_new(&self.unserved, &earlier.unserved);
        *earlier = self;
    }

    /// Replaces the reports about interfaces of pods, and logs the new ones.
    pub(super) fn hide(&mut self, hidden: Vec<String>) {
        log_new(&hidden, &self.hidden);
        self.hidden = hidden;
    }
}

fn log_new(problems: &[String], earlier: &[String]) {
    for problem in problems.iter().filter(|it| !earlier.contains(it)) {
        warn!(problem, "Services are not served on an interface");
    }
}
