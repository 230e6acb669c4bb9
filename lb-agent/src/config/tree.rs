//! YAML as a tree whose nodes know their line and column. The meaning of the keys is left to other modules.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::location::Location;
use super::problem::Problem;

/// A node of the tree: a value and its position.
#[derive(Clone, Debug)]
pub(super) struct YamlNode {
    pub(super) location: Location,
    pub(super) value: YamlValue,
}

/// The value of a node.
#[derive(Clone, Debug)]
pub(super) enum YamlValue {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(String, YamlNode)>),
}

impl YamlValue {
    /// Returns the value in the form that error messages use.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Bool(value) => value.to_string(),
            Self::Integer(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Text(text) => crate::snapshot::quoted(text),
            Self::List(_) => "a list".into(),
            Self::Map(_) => "a mapping".into(),
        }
    }

    /// Reports whether the value is more than one of the empty ones that kubeadm writes.
    pub(super) fn is_set(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Integer(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            // kubeadm writes every field, with its zero value; warnings about these would hide the others.
            Self::Text(text) => !matches!(text.as_str(), "" | "0" | "0s"),
            Self::List(list) => !list.is_empty(),
            Self::Map(entries) => entries.iter().any(|(_, node)| node.value.is_set()),
        }
    }
}

/// Parses all documents of a text. Error: the syntax error with its position.
pub(super) fn documents(text: &str) -> Result<Vec<YamlNode>, Problem> {
    // kube-proxy takes the last value of a key that occurs twice; `Section` warns of it.
    let options = serde_saphyr::options! {
        with_snippet: false,
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins,
    };
    let documents: Result<Vec<YamlNode>, _> =
        serde_saphyr::from_multiple_with_options(text, options);
    documents.map_err(|error| {
        let location = error.location().map(|at| Location { line: at.line(), column: at.column() });
        let text = error.to_string();
        let message = text.lines().next().unwrap_or_default();
        // `Problem` prints the position in front of the message.
        let message = message.rsplit_once(" at line ").map_or(message, |(message, _)| message);
        Problem {
            location: location.unwrap_or_default(),
            field: String::new(),
            message: message.to_owned(),
        }
    })
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<YamlValue>::deserialize(deserializer)?;
        let at = spanned.referenced;
        Ok(Self {
            location: Location { line: at.line(), column: at.column() },
            value: spanned.value,
        })
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = YamlValue;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_none<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<YamlValue, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, v: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<YamlValue, E> {
        // A number that no field can have stays a text, so that the refusal can quote it.
        Ok(i64::try_from(v).map_or_else(|_| YamlValue::Text(v.to_string()), YamlValue::Integer))
    }

    fn visit_f64<E>(self, v: f64) -> Result<YamlValue, E> {
        Ok(YamlValue::Float(v))
    }

    fn visit_str<E>(self, v: &str) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(v.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<YamlValue, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = seq.next_element()? {
            list.push(node);
        }
        Ok(YamlValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(YamlValue::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_place_in_any_document() {
        let text = "a: 1\n---\nb:\n  c: [true, x]\n";
        let documents = documents(text).unwrap();
        let YamlValue::Map(entries) = &documents[1].value else { panic!() };
        let YamlValue::Map(entries) = &entries[0].1.value else { panic!() };
        let YamlValue::List(list) = &entries[0].1.value else { panic!() };
        assert_eq!(list[1].location, Location { line: 4, column: 13 });
    }

    #[test]
    fn broken_yaml_has_a_place() {
        let problem = documents("a: 1\nb: [\n").unwrap_err();
        assert!(problem.location.line >= 2, "{problem}");
    }
}
