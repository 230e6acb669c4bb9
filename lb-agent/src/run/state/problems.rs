//! The problems for operators, as the state file names them: all are counted, and the first ones are kept as texts.

use crate::snapshot::Finding;

/// Largest number of problems that are kept as texts.
const NAMED: usize = 20;

/// The problems that do not come from the source.
#[derive(Debug, Default)]
pub(super) struct Problems {
    /// Faults of objects: the first ones as texts, and the number of all.
    of_objects: (Vec<String>, usize),
    /// Faults of interfaces and attachments.
    of_node: Vec<String>,
}

impl Problems {
    /// Sets the faults of objects.
    pub(super) fn set_findings(&mut self, mut findings: impl Iterator<Item = impl ToString>) {
        let named: Vec<String> = findings.by_ref().take(NAMED).map(|it| it.to_string()).collect();
        let count = named.len() + findings.count();
        self.of_objects = (named, count);
    }

    /// Sets the faults of interfaces and attachments.
    pub(super) fn set_of_node(&mut self, problems: Vec<String>) {
        self.of_node = problems;
    }

    /// Returns the texts of all problems, with those of the source, and the number of those without a text.
    pub(super) fn texts(&self, of_source: &[Finding]) -> Vec<String> {
        let (of_objects, count) = &self.of_objects;
        let known = self.of_node.len() + of_source.len() + count;
        let of_source = of_source.iter().map(ToString::to_string);
        let all = self.of_node.iter().cloned().chain(of_source).chain(of_objects.iter().cloned());
        // Problems of the node come first, as they concern all Services.
        let mut named: Vec<String> = all.take(NAMED).collect();
        match known.saturating_sub(named.len()) {
            0 => {}
            more => named.push(format!("{more} more; the log names all of them")),
        }
        named
    }
}
