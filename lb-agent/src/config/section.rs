//! Reads a mapping of a configuration file key by key. Invalid values are collected, and unread keys are reported.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::location::Location;
use super::problem::Problem;
use super::tree::{YamlNode, YamlValue};
use super::values;

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

    /// Reads a text that is not empty.
    pub(super) fn text(&mut self, key: &str) -> Option<FileValue<String>> {
        self.parse(key, "a text", |text| Ok(text.to_owned()))
    }

    pub(super) fn path(&mut self, key: &str) -> Option<FileValue<PathBuf>> {
        self.parse(key, "a path", |text| Ok(PathBuf::from(text)))
    }

    /// Reads a duration in Go's notation; zero counts as absent.
    pub(super) fn duration(&mut self, key: &str) -> Option<FileValue<Duration>> {
        self.duration_or(key, Duration::ZERO).filter(|found| !found.value.is_zero())
    }

    /// Reads a duration in Go's notation, with another value in place of zero.
    pub(super) fn duration_or(&mut self, key: &str, zero: Duration) -> Option<FileValue<Duration>> {
        let found = self.parse(key, "a duration such as 30s or 1h0m0s", values::duration)?;
        let value = if found.value.is_zero() { zero } else { found.value };
        Some(FileValue { value, ..found })
    }

    /// Reads one of several words. YAML takes `on` and `off` without quotes for booleans, so these are converted back.
    pub(super) fn word<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<FileValue<T>> {
        if let Some(node) = self.entries.get_mut(key)
            && let YamlValue::Bool(value) = node.value
            && let meant = if value { "on" } else { "off" }
            && words.iter().any(|(word, _)| *word == meant)
        {
            node.value = YamlValue::Text(meant.to_owned());
        }
        let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        self.parse(key, &allowed.join(", "), |text| {
            let found = words.iter().find(|(word, _)| *word == text);
            found.map(|(_, value)| *value).ok_or_else(String::new)
        })
    }

    /// Reads a text and parses it with `parse`. Empty and null count as absent.
    pub(super) fn parse<T>(
        &mut self,
        key: &str,
        allowed: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<FileValue<T>> {
        let node = self.take(key)?;
        let text = match &node.value {
            YamlValue::Text(text) if text.is_empty() => return None,
            YamlValue::Text(text) => text.clone(),
            // YAML reads `0` as a duration, or a name of digits, as an integer.
            YamlValue::Integer(number) => number.to_string(),
            YamlValue::Null
            | YamlValue::Bool(_)
            | YamlValue::Float(_)
            | YamlValue::List(_)
            | YamlValue::Map(_) => {
                return self.refuse(key, &node, allowed, "");
            }
        };
        match parse(&text) {
            Ok(value) => Some(FileValue { value, location: node.location }),
            Err(why) => self.refuse(key, &node, allowed, &why),
        }
    }

    /// Reads a boolean; every other type is an error.
    pub(super) fn flag(&mut self, key: &str) -> Option<FileValue<bool>> {
        let node = self.take(key)?;
        let YamlValue::Bool(value) = node.value else {
            return self.refuse(key, &node, "true, false", "");
        };
        Some(FileValue { value, location: node.location })
    }

    /// Reads an integer from `low` to `high`.
    pub(super) fn integer(&mut self, key: &str, low: i64, high: i64) -> Option<FileValue<i64>> {
        let node = self.take(key)?;
        if let YamlValue::Integer(value) = node.value
            && (low..=high).contains(&value)
        {
            return Some(FileValue { value, location: node.location });
        }
        self.refuse(key, &node, &format!("{low} to {high}"), "")
    }

    /// Reads a list of texts, each with its location; null counts as absent.
    pub(super) fn texts(&mut self, key: &str) -> Option<Vec<FileValue<String>>> {
        let node = self.take(key)?;
        let YamlValue::List(list) = node.value else {
            return self.refuse(key, &node, "a list", "");
        };
        let mut texts = Vec::new();
        for (at, item) in list.into_iter().enumerate() {
            let key = format!("{key}[{at}]");
            if let YamlValue::Text(value) = item.value {
                texts.push(FileValue { value, location: item.location });
            } else {
                let _: Option<()> = self.refuse(&key, &item, "a text", "");
            }
        }
        Some(texts)
    }

    /// Reads a mapping of names to positive integers.
    pub(super) fn numbers(&mut self, key: &str) -> Vec<(String, FileValue<u32>)> {
        self.sub(key, |section| {
            let names: Vec<String> = section.entries.keys().cloned().collect();
            let read = |name: String| {
                let found = section.integer(&name, 1, i64::from(u32::MAX))?;
                let value = u32::try_from(found.value).ok()?;
                Some((name, FileValue { value, location: found.location }))
            };
            names.into_iter().filter_map(read).collect()
        })
    }

    /// Reads up to one prefix of each family, separated by a comma. With `is_used` false, another text is dropped with
    /// a warning.
    pub(super) fn cidr_pair(&mut self, key: &str, is_used: bool) -> Option<FileValue<Vec<IpNet>>> {
        if !is_used
            && let Some(node) = self.entries.get(key)
            && let YamlValue::Text(text) = &node.value
            && !text.is_empty()
            && values::cidr_pair(text).is_err()
        {
            let location = node.location;
            drop(self.entries.remove(key));
            self.ignored(key, location);
            return None;
        }
        let allowed = "a prefix, or one of each family separated by a comma";
        self.parse(key, allowed, values::cidr_pair)
    }

    fn take(&mut self, key: &str) -> Option<YamlNode> {
        self.entries.remove(key).filter(|node| !matches!(node.value, YamlValue::Null))
    }

    fn refuse<T>(&mut self, key: &str, node: &YamlNode, allowed: &str, why: &str) -> Option<T> {
        let separator = if why.is_empty() { "" } else { ": " };
        let value = node.value.describe();
        let message = format!("{value} is not allowed{separator}{why}; allowed: {allowed}");
        self.wrong(node.location, key, message);
        None
    }

    fn path_of(&self, key: &str) -> String {
        let separator = if self.path.is_empty() || key.is_empty() { "" } else { "." };
        format!("{}{separator}{key}", self.path)
    }
}
