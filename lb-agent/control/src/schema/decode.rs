//! Decodes a document by the table of fields: unknown fields are dropped and reported, a value of the wrong type is an
//! error.

use serde_json::{Map, Value};

use super::{Kind, Type, time, type_of};

/// A document reduced to known fields, and the paths of the unknown ones.
#[derive(Debug, PartialEq)]
pub(crate) struct Decoded {
    pub(crate) value: Value,
    pub(crate) unknown: Vec<String>,
}

/// Keeps the fields that the type has. Errors are in the words of Go's decoder, which clients print.
pub(crate) fn decode(type_name: &str, value: &Value) -> Result<Decoded, String> {
    let mut walk = Walk { unknown: Vec::new(), names: Vec::new() };
    let value = match value {
        Value::Null => Value::Object(Map::new()),
        Value::Object(fields) => walk.object(type_of(type_name), fields, "")?,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            let short = &type_of(type_name).short;
            let word = word(value);
            return Err(format!("json: cannot unmarshal {word} into Go value of type v1.{short}"));
        }
    };
    Ok(Decoded { value, unknown: walk.unknown })
}

struct Walk {
    unknown: Vec<String>,
    /// Names of the fields on the way to the current one, without indices: Go's messages have them in this form.
    names: Vec<String>,
}

fn word(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Array(_) => "array".into(),
        Value::Object(_) => "object".into(),
    }
}

impl Walk {
    fn object(
        &mut self,
        of: &Type,
        fields: &Map<String, Value>,
        path: &str,
    ) -> Result<Value, String> {
        let mut known = Map::new();
        for (name, value) in fields {
            let dot = if path.is_empty() { "" } else { "." };
            let path = format!("{path}{dot}{name}");
            let Some(field) = of.field(name) else {
                self.unknown.push(path);
                continue;
            };
            // In Go, null leaves a field at its zero value, as if it were absent.
            if value.is_null() {
                continue;
            }
            self.names.push(name.clone());
            let decoded = self.value(&field.kind, value, &path, &of.short)?;
            drop(self.names.pop());
            drop(known.insert(name.clone(), decoded));
        }
        Ok(known.into())
    }

    fn value(
        &mut self,
        kind: &Kind,
        value: &Value,
        path: &str,
        short: &str,
    ) -> Result<Value, String> {
        match (kind, value) {
            (Kind::Object(name), Value::Object(fields)) => self.object(type_of(name), fields, path),
            // Go decodes null into the zero value of a type.
            (Kind::Object(_), Value::Null) => Ok(Map::new().into()),
            (Kind::List(element), Value::Array(all)) => {
                let each = all.iter().enumerate();
                let each =
                    each.map(|(i, it)| self.value(element, it, &format!("{path}[{i}]"), short));
                each.collect()
            }
            (Kind::Map(element), Value::Object(all)) => {
                let mut known = Map::new();
                for (key, value) in all {
                    let path = format!("{path}.{key}");
                    drop(known.insert(key.clone(), self.value(element, value, &path, short)?));
                }
                Ok(known.into())
            }
            (Kind::String | Kind::Bytes, Value::Null) => Ok("".into()),
            (Kind::Int32 | Kind::Int64, Value::Null) => Ok(0.into()),
            (Kind::Bool, Value::Null) => Ok(false.into()),
            (Kind::String | Kind::Bytes | Kind::IntOrString | Kind::Quantity, Value::String(_))
            | (Kind::Bool, Value::Bool(_))
            | (Kind::Any, _) => Ok(value.clone()),
            (Kind::Quantity, Value::Number(number)) => Ok(number.to_string().into()),
            (Kind::Int64, Value::Number(number)) if number.is_i64() => Ok(value.clone()),
            (Kind::Int32 | Kind::IntOrString, Value::Number(number))
                if number.as_i64().is_some_and(|it| i32::try_from(it).is_ok()) =>
            {
                Ok(value.clone())
            }
            (Kind::Time, Value::String(text)) => time::seconds(text).map(Value::from),
            (Kind::MicroTime, Value::String(text)) => time::micro(text).map(Value::from),
            _ => Err(self.mismatch(kind, value, short)),
        }
    }

    fn mismatch(&self, kind: &Kind, value: &Value, short: &str) -> String {
        let is_integer = matches!(kind, Kind::Int32 | Kind::Int64);
        let number = value.as_number().filter(|_| is_integer);
        let found = number.map_or_else(|| word(value), |it| format!("number {it}"));
        let (path, wanted) = (self.names.join("."), go(kind));
        format!(
            "json: cannot unmarshal {found} into Go struct field {short}.{path} of type {wanted}"
        )
    }
}

/// Returns the name of a kind in Go's error messages.
fn go(kind: &Kind) -> String {
    match kind {
        Kind::String | Kind::Time | Kind::MicroTime => "string".into(),
        Kind::Bool => "bool".into(),
        Kind::Int32 | Kind::IntOrString => "int32".into(),
        Kind::Int64 => "int64".into(),
        Kind::Bytes => "[]uint8".into(),
        Kind::Quantity => "resource.Quantity".into(),
        Kind::Any => "interface {}".into(),
        Kind::List(element) => format!("[]{}", go(element)),
        Kind::Map(element) => format!("map[string]{}", go(element)),
        Kind::Object(name) => format!("v1.{}", type_of(name).short),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn statement_81_unknown_fields_are_named_and_dropped() {
        let value = json!({"kind": "Service", "spec": {"bogus": 1, "ports": [{"port": 1, "x": 2}]}, "y": {}});
        let decoded = decode("core.Service", &value).unwrap();
        assert_eq!(decoded.unknown, ["spec.bogus", "spec.ports[0].x", "y"]);
        assert_eq!(decoded.value, json!({"kind": "Service", "spec": {"ports": [{"port": 1}]}}));
    }

    #[test]
    fn statement_78_other_types_are_reported_in_the_words_of_go() {
        let of = |value: Value| decode("core.Service", &value).unwrap_err();
        assert_eq!(
            of(json!({"spec": {"ports": [{"port": "80"}]}})),
            "json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32"
        );
        assert_eq!(
            of(json!({"metadata": {"labels": {"a": 1}}})),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string"
        );
        assert!(
            of(json!({"spec": {"ports": [{"port": 3_000_000_000_u64}]}}))
                .contains("number 3000000000")
        );
    }

    #[test]
    fn absent_and_null_are_the_same() {
        let decoded = decode("core.Service", &json!({"spec": null, "metadata": {"name": null}}));
        assert_eq!(decoded.unwrap().value, json!({"metadata": {}}));
    }
}
