//! Parses JSON and YAML, and finds duplicate fields.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A document, and the paths of its duplicate fields; the last value of each counts.
#[derive(Debug, PartialEq)]
pub(crate) struct Parsed {
    pub(crate) value: Value,
    pub(crate) duplicates: Vec<String>,
}

/// Parses JSON, and records the paths of duplicate fields.
pub(crate) fn json(bytes: &[u8]) -> Result<Parsed, String> {
    let duplicates = RefCell::default();
    let seed = Node { path: String::new(), duplicates: &duplicates };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = seed.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    let value = value.map_err(|error| error.to_string())?;
    Ok(Parsed { value, duplicates: duplicates.into_inner() })
}

/// Parses one YAML document.
pub(crate) fn yaml(bytes: &[u8]) -> Result<Parsed, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let options = serde_saphyr::options! {
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins,
    };
    let value: Value =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
    Ok(Parsed { value, duplicates: Vec::new() })
}

struct Node<'a> {
    path: String,
    duplicates: &'a RefCell<Vec<String>>,
}

impl Node<'_> {
    const fn inner(&self, path: String) -> Self {
        Node { path, duplicates: self.duplicates }
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        let at = |index: usize| self.inner(format!("{}[{index}]", self.path));
        while let Some(value) = seq.next_element_seed(at(all.len()))? {
            all.push(value);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let dot = if self.path.is_empty() { "" } else { "." };
            let path = format!("{}{dot}{key}", self.path);
            // The path is copied on each level, so its length limits time and memory of nested input.
            if path.len() > 10_000 {
                return Err(A::Error::custom("too deep"));
            }
            // A duplicate is not an error here: `fieldValidation` decides. The last value counts, as in Go.
            if all.contains_key(&key) {
                self.duplicates.borrow_mut().push(path.clone());
            }
            let value = map.next_value_seed(self.inner(path))?;
            drop(all.insert(key, value));
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_keys_are_named_and_the_last_counts() {
        let parsed = json(br#"{"a": {"b": 1, "b": 2}, "c": [{"d": 1, "d": 1}]}"#).unwrap();
        assert_eq!(parsed.duplicates, ["a.b", "c[0].d"]);
        assert_eq!(parsed.value["a"]["b"], 2);
        assert!(json(b"{").is_err() && json(b"{} {}").is_err());
    }

    #[test]
    fn yaml_is_read_too() {
        let parsed = yaml(b"a:\n- b: 1\n  c: \"2\"\n").unwrap();
        assert_eq!(parsed.value, serde_json::json!({"a": [{"b": 1, "c": "2"}]}));
    }
}
