//! Other forms of objects: lists, tables for people, and metadata only.

use std::sync::Arc;

use serde_json::{Value, json};

use super::rules;
use crate::kind::Kind;
use crate::store::Object;

mod age;
mod rows;

/// Reports whether the stored form of a kind differs from the served one.
pub(crate) fn is_translated(kind: &Kind) -> bool {
    kind.group == "events.k8s.io"
}

/// Converts a stored value to the form that the resource serves.
pub(crate) fn translated(value: Value, kind: &Kind) -> Value {
    if is_translated(kind) { rules::translated(value) } else { value }
}

/// Returns a stored object in the form that the resource serves.
pub(crate) fn view(object: &Object, kind: &Kind) -> Value {
    translated(object.value(), kind)
}

/// Makes a list; the caller adds the metadata.
pub(crate) fn list(kind: &Kind, mut items: Vec<Value>) -> Value {
    // Upstream omits kind and version of the items: the list implies them.
    for fields in items.iter_mut().filter_map(Value::as_object_mut) {
        drop(fields.remove("kind"));
        drop(fields.remove("apiVersion"));
    }
    json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.api_version(), "items": items})
}

/// Makes a list in JSON from the stored bytes of the objects, without parsing them.
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
        // As in `list`: the items carry neither kind nor version.
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

/// Returns only the metadata of an object (`PartialObjectMetadata`).
pub(crate) fn metadata(value: &Value) -> Value {
    let metadata = value.get("metadata").cloned().unwrap_or_default();
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
}

/// Returns only the metadata of each object (`PartialObjectMetadataList`).
pub(crate) fn metadata_list(values: &[Value]) -> Value {
    let items: Vec<Value> = values.iter().map(metadata).collect();
    json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": items})
}

/// Makes a table of rows and columns; `include` is the request's `includeObject`: `None`, `Metadata` (default) or
/// `Object`.
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
