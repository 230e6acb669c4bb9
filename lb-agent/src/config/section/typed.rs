//! Reads the value of a key as one of the types of the configuration. A value of another type, or outside of the allowed
//! range, is recorded as a problem.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::{FileValue, Section};
use crate::config::tree::{YamlNode, YamlValue};
use crate::config::values;

impl Section {
    /// Reads a text that is not empty.
    pub(in crate::config) fn text(&mut self, key: &str) -> Option<FileValue<String>> {
        self.parse(key, "a text", |text| Ok(text.to_owned()))
    }

    pub(in crate::config) fn path(&mut self, key: &str) -> Option<FileValue<PathBuf>> {
        self.parse(key, "a path", |text| Ok(PathBuf::from(text)))
    }

    /// Reads a duration in Go's notation; zero counts as absent.
    pub(in crate::config) fn duration(&mut self, key: &str) -> Option<FileValue<Duration>> {
        self.duration_or(key, Duration::ZERO).filter(|found| !found.value.is_zero())
    }

    /// Reads a duration in Go's notation, with another value in place of zero.
    pub(in crate::config) fn duration_or(
        &mut self,
        key: &str,
        zero: Duration,
    ) -> Option<FileValue<Duration>> {
        let found = self.parse(key, "a duration such as 30s or 1h0m0s", values::duration)?;
        let value = if found.value.is_zero() { zero } else { found.value };
        Some(FileValue { value, ..found })
    }

    /// Reads one of several words. YAML takes `on` and `off` without quotes for booleans, so these are converted back.
    pub(in crate::config) fn word<T: Copy>(
        &mut self,
        key: &str,
        words: &[(&str, T)],
    ) -> Option<FileValue<T>> {
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
    pub(in crate::config) fn parse<T>(
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
    pub(in crate::config) fn flag(&mut self, key: &str) -> Option<FileValue<bool>> {
        let node = self.take(key)?;
        let YamlValue::Bool(value) = node.value else {
            return self.refuse(key, &node, "true, false", "");
        };
        Some(FileValue { value, location: node.location })
    }

    /// Reads an integer from `low` to `high`.
    pub(in crate::config) fn integer(
        &mut self,
        key: &str,
        low: i64,
        high: i64,
    ) -> Option<FileValue<i64>> {
        let node = self.take(key)?;
        if let YamlValue::Integer(value) = node.value
            && (low..=high).contains(&value)
        {
            return Some(FileValue { value, location: node.location });
        }
        self.refuse(key, &node, &format!("{low} to {high}"), "")
    }

    /// Reads a list of texts, each with its location; null counts as absent.
    pub(in crate::config) fn texts(&mut self, key: &str) -> Option<Vec<FileValue<String>>> {
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
    pub(in crate::config) fn numbers(&mut self, key: &str) -> Vec<(String, FileValue<u32>)> {
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
    pub(in crate::config) fn cidr_pair(
        &mut self,
        key: &str,
        is_used: bool,
    ) -> Option<FileValue<Vec<IpNet>>> {
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
}
