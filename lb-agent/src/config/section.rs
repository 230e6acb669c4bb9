//! Reads a mapping of a configuration file key by key. Invalid values are collected, and unread keys are reported.

mod typed;

use std::collections::BTreeMap;
use std::time::Duration;

use super::location::Location;
use super::problem::Problem;
use super::tree::{YamlNode, YamlValue};

/// A value from a file, and its location there.
#[derive(Clone, Debug)]
pub(super) struct FileValue<T> {
    pub(super) value: T,
    pub(super) location: Location,
}

/// The findings so far.
#[derive(Debug, Default)]
pub(super) struct Diagnostics {
    /// Invalid values, which make the configuration fail.
    pub(super) problems: Vec<Problem>,
    /// Settings without effect, which are only logged.
    pub(super) warnings: Vec<String>,
}

/// A mapping. Reading a key removes it from `entries`, so that the unread ones remain.
#[derive(Debug)]
pub(super) struct Section {
    path: String,
    entries: BTreeMap<String, YamlNode>,
    pub(super) diagnostics: Diagnostics,
}

impl Section {
    /// Takes the top level of a document. A document that is not a mapping has no keys.
    pub(super) fn of(document: &YamlNode) -> Self {
        Self::at(String::new(), document)
    }

    fn at(path: String, document: &YamlNode) -> Self {
        let mut section =
            Self { path, entries: BTreeMap::new(), diagnostics: Diagnostics::default() };
        match &document.value {
            YamlValue::Map(entries) => section.fill(entries),
            YamlValue::Null => {}
            YamlValue::Bool(_)
            | YamlValue::Integer(_)
            | YamlValue::Float(_)
            | YamlValue::Text(_)
            | YamlValue::List(_) => {
                let value = document.value.describe();
                section.wrong(document.location, "", format!("{value} is not a mapping"));
            }
        }
        section
    }

    /// Takes the entries of a mapping. The last value of a key that occurs twice counts, as in kube-proxy.
    fn fill(&mut self, entries: &[(String, YamlNode)]) {
        for (key, node) in entries {
            if let Some(earlier) = self.entries.insert(key.clone(), node.clone()) {
                let (location, path) = (earlier.location, self.path_of(key));
                let text = format!("{location}: {path}: written twice, the last value counts");
                self.diagnostics.warnings.push(text);
            }
        }
    }

    /// Reads a mapping nested in this one.
    pub(super) fn sub<T>(&mut self, key: &str, read: impl FnOnce(&mut Self) -> T) -> T {
        let path = self.path_of(key);
        let node = self.entries.remove(key);
        let node = node
            .unwrap_or_else(|| YamlNode { location: Location::default(), value: YamlValue::Null });
        let mut inner = Self::at(path, &node);
        let value = read(&mut inner);
        // Unknown keys of the inner mapping are reported with their whole path.
        let diagnostics = inner.finish();
        self.diagnostics.problems.extend(diagnostics.problems);
        self.diagnostics.warnings.extend(diagnostics.warnings);
        value
    }

    /// Returns the findings, with a warning for each key that was not read.
    pub(super) fn finish(mut self) -> Diagnostics {
        for (key, node) in std::mem::take(&mut self.entries) {
            let (location, path) = (node.location, self.path_of(&key));
            self.diagnostics.warnings.push(format!("{location}: {path}: unknown field, ignored"));
        }
        self.diagnostics
    }

    /// Records that the value of a key is invalid.
    pub(super) fn wrong(&mut self, location: Location, key: &str, message: String) {
        let field = self.path_of(key);
        self.diagnostics.problems.push(Problem { location, field, message });
    }

    /// Accepts keys that have no meaning here, with a warning for each that is set.
    pub(super) fn ignored_flags(&mut self, keys: &[&str]) {
        for key in keys {
            if let Some(node) = self.entries.remove(*key).filter(|node| node.value.is_set()) {
                self.ignored(key, node.location);
            }
        }
    }

    /// Accepts all other keys, with a warning for each that is set.
    pub(super) fn ignored_rest(&mut self) {
        for (key, node) in std::mem::take(&mut self.entries) {
            if node.value.is_set() {
                self.ignored(&key, node.location);
            }
        }
    }

    /// Validates integers that have no effect here, each with its least and greatest value; warns of each that is set.
    pub(super) fn integers(&mut self, keys: &[(&str, i64, i64)]) {
        for (key, low, high) in keys {
            let read = |section: &mut Self, key: &str| section.integer(key, *low, *high);
            let _: Option<FileValue<i64>> = self.where_it_counts(key, false, read);
        }
    }

    /// Validates durations that have no effect here, with a warning for each that is set.
    pub(super) fn durations(&mut self, keys: &[&str]) {
        for key in keys {
            let _: Option<FileValue<Duration>> = self.where_it_counts(key, false, Self::duration);
        }
    }

    /// Reads and validates a key. With `counts` false its value is dropped, with a warning if it is set.
    pub(super) fn where_it_counts<T>(
        &mut self,
        key: &str,
        counts: bool,
        read: impl FnOnce(&mut Self, &str) -> Option<FileValue<T>>,
    ) -> Option<FileValue<T>> {
        let is_set = self.entries.get(key).is_some_and(|node| node.value.is_set());
        // The value is read in any case, so that a wrong value is reported even where it has no effect.
        let found = read(self, key);
        if let Some(found) = &found
            && is_set
            && !counts
        {
            self.ignored(key, found.location);
        }
        found.filter(|_| counts)
    }

    fn ignored(&mut self, key: &str, location: Location) {
        let path = self.path_of(key);
        self.diagnostics.warnings.push(format!("{location}: {path}: has no effect here, ignored"));
    }

    /// Reports whether a key is present, even with an empty value.
    pub(super) fn names(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    fn path_of(&self, key: &str) -> String {
        let separator = if self.path.is_empty() || key.is_empty() { "" } else { "." };
        format!("{}{separator}{key}", self.path)
    }
}
