//! `OpenAPI` v3, as much of it as `kubectl apply` and `kubectl explain` read.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::kind::{KINDS, Kind};
use crate::schema::{self, Kind as Type};

/// Returns the index of the documents, one for each API group.
pub(crate) fn index() -> Value {
    let mut paths = Map::new();
    let groups: BTreeSet<&str> = KINDS.iter().map(|it| it.group).collect();
    for group in groups {
        let path = if group.is_empty() { "api/v1".to_owned() } else { format!("apis/{group}/v1") };
        // The hash is for caches of clients: the content changes only with the program's version.
        let url = format!("/openapi/v3/{path}?hash={}", env!("CARGO_PKG_VERSION"));
        drop(paths.insert(path, json!({"serverRelativeURL": url})));
    }
    json!({"paths": paths})
}

/// Returns the document of one group: its kinds, all types they contain, and its paths.
pub(crate) fn document(group: &str) -> Value {
    let mut schemas = Map::new();
    let mut wanted: Vec<&str> = Vec::new();
    let mut paths = Map::new();
    for kind in KINDS.iter().filter(|it| it.group == group) {
        wanted.push(kind.type_name);
        let (path, item) = path(kind);
        drop(paths.insert(path, item));
    }
    // Each type adds the types of its fields, until all are described. A type can contain itself, so known ones are
    // skipped.
    while let Some(name) = wanted.pop() {
        let full = full(name);
        if !schemas.contains_key(&full) {
            drop(schemas.insert(full, one(name, &mut wanted)));
        }
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "lb-agent", "version": "v1.36.3"},
        "paths": paths, "components": {"schemas": schemas},
    })
}

fn full(name: &str) -> String {
    let (package, short) = name.split_once('.').unwrap_or(("core", name));
    match package {
        "meta" => format!("io.k8s.apimachinery.pkg.apis.meta.v1.{short}"),
        package => format!("io.k8s.api.{package}.v1.{short}"),
    }
}

fn one(name: &'static str, wanted: &mut Vec<&'static str>) -> Value {
    let mut properties = Map::new();
    for field in &schema::type_of(name).fields {
        let mut property = of(&field.kind, wanted);
        // kubectl computes strategic merge patches from these extensions.
        if let (Some(key), Some(fields)) = (&field.merge_key, property.as_object_mut()) {
            drop(fields.insert("x-kubernetes-patch-merge-key".into(), key.as_str().into()));
            let strategy = field.strategy.join(",");
            drop(fields.insert("x-kubernetes-patch-strategy".into(), strategy.into()));
        }
        drop(properties.insert(field.name.clone(), property));
    }
    let mut schema = json!({"type": "object", "properties": properties});
    let kind = KINDS.iter().find(|it| it.type_name == name);
    if let (Some(kind), Some(fields)) = (kind, schema.as_object_mut()) {
        drop(fields.insert("x-kubernetes-group-version-kind".into(), json!([named(kind)])));
    }
    schema
}

fn named(kind: &Kind) -> Value {
    json!({"group": kind.group, "version": "v1", "kind": kind.kind})
}

fn of(kind: &'static Type, wanted: &mut Vec<&'static str>) -> Value {
    match kind {
        Type::String | Type::Bytes | Type::Quantity => json!({"type": "string"}),
        Type::Bool => json!({"type": "boolean"}),
        Type::Int32 => json!({"type": "integer", "format": "int32"}),
        Type::Int64 => json!({"type": "integer", "format": "int64"}),
        Type::Time | Type::MicroTime => json!({"type": "string", "format": "date-time"}),
        Type::IntOrString => {
            json!({"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"})
        }
        Type::Any => json!({"type": "object"}),
        Type::List(element) => json!({"type": "array", "items": of(element, wanted)}),
        Type::Map(element) => {
            json!({"type": "object", "additionalProperties": of(element, wanted)})
        }
        Type::Object(name) => {
            wanted.push(name);
            json!({"allOf": [{"$ref": format!("#/components/schemas/{}", full(name))}]})
        }
    }
}

/// Returns the path of one object and its operations. `fieldValidation` as a parameter of PATCH makes kubectl leave
/// validation to the server.
fn path(kind: &Kind) -> (String, Value) {
    let root = if kind.group.is_empty() {
        "/api/v1".to_owned()
    } else {
        format!("/apis/{}/v1", kind.group)
    };
    let namespace = if kind.is_namespaced { "/namespaces/{namespace}" } else { "" };
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let operation = |action: &str| {
        json!({
            "operationId": format!("{action}{}", kind.kind),
            "parameters": [parameter("dryRun"), parameter("fieldValidation")],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": named(kind),
        })
    };
    let mut item = json!({"get": operation("get")});
    if let (true, Some(fields)) = (kind.is_writable, item.as_object_mut()) {
        for action in ["put", "patch", "delete"] {
            drop(fields.insert(action.into(), operation(action)));
        }
    }
    (format!("{root}{namespace}/{}/{{name}}", kind.resource), item)
}
