//! Encodes values as the API writes them: fields in the order of the type, zero values left out where upstream does so.

use serde_json::{Map, Value};

use super::{Field, Kind, Type, type_of};

/// Writes an object of this type in JSON.
pub(crate) fn encode(type_name: &str, value: &Value, into: &mut Vec<u8>) {
    let none = Map::new();
    object(type_of(type_name), value.as_object().unwrap_or(&none), into);
}

fn object(of: &Type, fields: &Map<String, Value>, into: &mut Vec<u8>) {
    into.push(b'{');
    let start = into.len();
    for field in &of.fields {
        let value = fields.get(&field.name).filter(|it| !it.is_null());
        if is_absent(field, value) {
            continue;
        }
        if into.len() > start {
            into.push(b',');
        }
        text(&field.name, into);
        into.push(b':');
        match value {
            // Go's encoder writes null for a nil pointer without `omitempty`.
            None if field.is_pointer => into.extend_from_slice(b"null"),
            value => write(&field.kind, value, into),
        }
    }
    into.push(b'}');
}

fn is_absent(field: &Field, value: Option<&Value>) -> bool {
    match value {
        None if field.is_pointer => field.omits_empty,
        None | Some(_) if field.is_pointer => false,
        value => {
            // Go's `omitempty` has no effect on structs, which are never empty for it; `omitzero` has.
            let is_struct = matches!(
                field.kind,
                Kind::Object(_) | Kind::Time | Kind::MicroTime | Kind::Quantity | Kind::IntOrString
            );
            let is_nothing = value.is_none_or(is_zero);
            is_nothing && ((field.omits_empty && !is_struct) || field.omits_zero)
        }
    }
}

/// Reports whether a value is the zero value of its type.
pub(crate) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(it) => !it,
        Value::Number(it) => it.as_i64() == Some(0),
        Value::String(it) => it.is_empty(),
        Value::Array(it) => it.is_empty(),
        Value::Object(it) => it.is_empty(),
    }
}

fn text(text: &str, into: &mut Vec<u8>) {
    plain(&Value::from(text), into);
}

fn plain(value: &Value, into: &mut Vec<u8>) {
    // Writing to memory cannot fail, and every key is a string.
    drop(serde_json::to_writer(into, value));
}

fn write(kind: &Kind, value: Option<&Value>, into: &mut Vec<u8>) {
    match (kind, value) {
        (Kind::Object(name), value) => {
            let none = Map::new();
            object(type_of(name), value.and_then(Value::as_object).unwrap_or(&none), into);
        }
        (Kind::List(element), Some(Value::Array(all))) if !all.is_empty() => {
            into.push(b'[');
            for (index, value) in all.iter().enumerate() {
                if index > 0 {
                    into.push(b',');
                }
                write(element, Some(value), into);
            }
            into.push(b']');
        }
        (Kind::Map(element), Some(Value::Object(all))) => {
            into.push(b'{');
            for (index, (key, value)) in all.iter().enumerate() {
                if index > 0 {
                    into.push(b',');
                }
                text(key, into);
                into.push(b':');
                write(element, Some(value), into);
            }
            into.push(b'}');
        }
        // Go writes a nil slice as null; the stored form does not distinguish nil from empty.
        (Kind::List(_) | Kind::Map(_) | Kind::Time | Kind::MicroTime, _)
            if value.is_none_or(is_zero) =>
        {
            into.extend_from_slice(b"null");
        }
        (Kind::String | Kind::Bytes, None) => into.extend_from_slice(b"\"\""),
        (Kind::Bool, None) => into.extend_from_slice(b"false"),
        (Kind::Int32 | Kind::Int64 | Kind::IntOrString, None) => into.push(b'0'),
        (Kind::Quantity, None) => into.extend_from_slice(b"\"0\""),
        (_, Some(value)) => plain(value, into),
        (_, None) => into.extend_from_slice(b"null"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(type_name: &str, value: &Value) -> String {
        let mut bytes = Vec::new();
        encode(type_name, value, &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn statement_104_order_and_absence() {
        let value = json!({
            "spec": {"type": "ClusterIP", "ports": [{"targetPort": 80, "port": 80, "name": ""}], "selector": {}},
            "metadata": {"uid": "u", "name": "x", "labels": {}, "creationTimestamp": ""},
            "apiVersion": "v1", "kind": "Service",
        });
        assert_eq!(
            written("core.Service", &value),
            r#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"x","uid":"u"},"spec":{"ports":[{"port":80,"targetPort":80}],"type":"ClusterIP"},"status":{"loadBalancer":{}}}"#
        );
    }

    #[test]
    fn statement_13_empty_lists_that_are_always_written() {
        let text = written("discovery.EndpointSlice", &json!({"addressType": "IPv4"}));
        assert!(text.contains(r#""endpoints":null,"ports":null"#), "{text}");
    }

    #[test]
    fn pointers_keep_zero() {
        let text = written("core.ServiceSpec", &json!({"allocateLoadBalancerNodePorts": false}));
        assert_eq!(text, r#"{"allocateLoadBalancerNodePorts":false}"#);
    }
}
