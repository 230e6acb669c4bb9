//! Objects in other forms: lists, tables for people, and only what they say of themselves.

use std::sync::Arc;

use serde_json::{Value, json};

use super::rules;
use crate::kind::Kind;
use crate::store::Object;

mod age;
mod rows;

/// Reports whether what is kept differs from what is shown.
pub(crate) fn is_translated(kind: &Kind) -> bool {
    kind.group == "events.k8s.io"
}

/// Returns a kept value as its resource shows it.
pub(crate) fn translated(value: Value, kind: &Kind) -> Value {
    if is_translated(kind) { rules::translated(value) } else { value }
}

/// Returns an object as its resource shows it.
pub(crate) fn view(object: &Object, kind: &Kind) -> Value {
    translated(object.value(), kind)
}

/// A list without metadata.
pub(crate) fn list(kind: &Kind, mut items: Vec<Value>) -> Value {
    // The list says of which kind they are.
    for fields in items.iter_mut().filter_map(Value::as_object_mut) {
        drop(fields.remove("kind"));
        drop(fields.remove("apiVersion"));
    }
    json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(), "items": items})
}

/// A list of objects as they are kept, put together without reading any.
pub(crate) fn list_bytes(kind: &Kind, items: &[Arc<Object>], metadata: &Value) -> Vec<u8> {
    let size: usize = items.iter().map(|it| it.json.len() + 1).sum();
    let mut bytes = Vec::with_capacity(size + 256);
    let (name, version) = (kind.kind, kind.api_version());
    let head = format!(
        "{{\"kind\":\"{name}List\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},\"items\":["
    );
    bytes.extend_from_slice(head.as_bytes());
    let own = format!("{{\"kind\":\"{name}\",\"apiVersion\":\"{version}\",");
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            bytes.push(b',');
        }
        // The list says of which kind they are.
        if let Some(rest) = item.json.strip_prefix(own.as_bytes()) {
            bytes.push(b'{');
            bytes.extend_from_slice(rest);
        } else {
            bytes.extend_from_slice(&item.json);
        }
    }
    bytes.extend_from_slice(b"]}");
    bytes
}

/// Only what an object says of itself.
pub(crate) fn metadata(value: &Value) -> Value {
    let metadata = value.get("metadata").cloned().unwrap_or_default();
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

/// The same of many.
pub(crate) fn metadata_list(values: &[Value]) -> Value {
    let items: Vec<Value> = values.iter().map(metadata).collect();
    json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": items})
}

/// Rows and columns; `include` says how much of an object goes with its row.
pub(crate) fn table(kind: &Kind, values: &[Value], revision: &str, include: Option<&str>) -> Value {
    let columns: Vec<Value> = rows::columns(kind)
        .iter()
        .map(|it| {
            let format = if it.name == "Name" { "name" } else { "" };
            json!({"name": it.name, "type": it.kind, "format": format, "description": "", "priority": it.priority})
        })
        .collect();
    let rows: Vec<Value> = values
        .iter()
        .map(|value| {
            let mut row = json!({"cells": rows::cells(kind, value)});
            let object = match include {
                Some("None") => None,
                Some("Object") => Some(value.clone()),
                _ => Some(metadata(value)),
            };
            if let (Some(object), Some(fields)) = (object, row.as_object_mut()) {
                drop(fields.insert("object".into(), object));
            }
            row
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": revision},
        "columnDefinitions": columns, "rows": rows,
    })
}
