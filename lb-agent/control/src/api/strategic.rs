//! Strategic merge patch: lists with a merge key are merged element by element.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::schema::{Field, Kind, Type, type_of};

const DIRECTIVE: &str = "$patch";
const ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";
const RETAIN: &str = "$retainKeys";

/// Merges a patch into an object of this type. Errors: a patch without a merge key, or with an unknown directive.
pub(crate) fn merge(value: Value, patch: &Value, type_name: &str) -> Result<Value, String> {
    let (Value::Object(mut fields), Value::Object(patch)) = (value, patch) else {
        return Err("a patch must be an object".into());
    };
    object(&mut fields, patch, type_of(type_name))?;
    Ok(fields.into())
}

fn object(
    into: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    of: &Type,
) -> Result<(), String> {
    match patch.get(DIRECTIVE).map(|it| it.as_str().unwrap_or_default()) {
        None | Some("merge") => {}
        Some("replace") => {
            into.clear();
            into.extend(plain(patch));
            return Ok(());
        }
        Some("delete") => {
            into.clear();
            return Ok(());
        }
        Some(other) => return Err(format!("Unknown patch type found: {other}")),
    }
    if let Some(Value::Array(kept)) = patch.get(RETAIN) {
        into.retain(|name, _| kept.iter().any(|it| it == name));
    }
    // `$setElementOrder` compares with the order on the server, so that is remembered before the merge changes it.
    let before: BTreeMap<String, Vec<Value>> = ordered(patch)
        .filter_map(|(name, _)| Some((name.to_owned(), into.get(name)?.as_array()?.clone())))
        .collect();
    for (name, value) in patch {
        if let Some(name) = name.strip_prefix(DELETE_PRIMITIVES) {
            if let (Some(Value::Array(list)), Value::Array(gone)) = (into.get_mut(name), value) {
                list.retain(|it| !gone.contains(it));
            }
        } else if !name.starts_with('$') {
            field(into, name, value, of.field(name))?;
        }
    }
    for (name, order) in ordered(patch) {
        if let (Some(Value::Array(list)), Value::Array(order)) = (into.get_mut(name), order) {
            let key = of.field(name).and_then(|it| it.merge_key.as_deref());
            let server = before.get(name).map_or(&[][..], Vec::as_slice);
            *list = arrange(std::mem::take(list), order, server, key);
        }
    }
    Ok(())
}

/// Returns the lists for which a patch sets the order (`$setElementOrder/...`).
fn ordered(patch: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    patch.iter().filter_map(|(it, order)| Some((it.strip_prefix(ORDER)?, order)))
}

/// Returns the fields of a patch without its directives.
fn plain(patch: &Map<String, Value>) -> impl Iterator<Item = (String, Value)> {
    let fields = patch.iter().filter(|it| !it.0.starts_with('$'));
    fields.map(|(name, value)| (name.clone(), value.clone()))
}

fn field(
    into: &mut Map<String, Value>,
    name: &str,
    value: &Value,
    field: Option<&Field>,
) -> Result<(), String> {
    // As in a merge patch (RFC 7396), null removes the field.
    if value.is_null() {
        drop(into.remove(name));
        return Ok(());
    }
    let is_replaced = field.is_some_and(|it| it.strategy.iter().any(|it| it == "replace"));
    match (into.get_mut(name), value, field.map(|it| &it.kind)) {
        (Some(Value::Object(old)), Value::Object(new), Some(Kind::Object(inner)))
            if !is_replaced =>
        {
            object(old, new, type_of(inner))?;
        }
        (Some(Value::Object(old)), Value::Object(new), _) if !is_replaced => {
            object(old, new, &Type::default())?;
        }
        // A new object is patched into an empty one, so that directives inside it are applied and do not get stored.
        (None, Value::Object(new), kind) => {
            let mut made = Map::new();
            let of = match kind {
                Some(Kind::Object(inner)) => type_of(inner).clone(),
                _ => Type::default(),
            };
            object(&mut made, new, &of)?;
            drop(into.insert(name.into(), made.into()));
        }
        (old, Value::Array(new), Some(Kind::List(element))) => {
            let merges = field.is_some_and(|it| it.strategy.iter().any(|it| it == "merge"));
            let old = match old {
                Some(Value::Array(old)) => std::mem::take(old),
                _ => Vec::new(),
            };
            let key = field.and_then(|it| it.merge_key.as_deref());
            let list = match (merges, key) {
                (true, Some(key)) => by_key(old, new, key, element)?,
                (true, None) => union(old, new),
                (false, _) => new.clone(),
            };
            drop(into.insert(name.into(), list.into()));
        }
        _ => drop(into.insert(name.into(), value.clone())),
    }
    Ok(())
}

fn union(mut old: Vec<Value>, new: &[Value]) -> Vec<Value> {
    let server = old.clone();
    for value in new {
        if !old.contains(value) {
            old.push(value.clone());
        }
    }
    arrange(old, new, &server, None)
}

fn by_key(old: Vec<Value>, new: &[Value], key: &str, element: &Kind) -> Result<Vec<Value>, String> {
    let directive = |it: &Value| it.get(DIRECTIVE).and_then(Value::as_str).map(str::to_owned);
    // An element with this directive replaces the whole list and is not an element itself.
    if new.iter().any(|it| directive(it).as_deref() == Some("replace")) {
        return Ok(new.iter().filter(|it| directive(it).is_none()).cloned().collect());
    }
    let of = if let Kind::Object(name) = element { type_of(name).clone() } else { Type::default() };
    // The order on the server decides where elements go that the patch does not name.
    let server = old.clone();
    let mut merged = old;
    for value in new {
        let Value::Object(patch) = value else {
            return Err("a list with a merge key must hold objects".into());
        };
        let Some(wanted) = patch.get(key) else {
            return Err(format!("map: {value} does not contain declared merge key: {key}"));
        };
        let is_same = |it: &Value| it.get(key) == Some(wanted);
        if directive(value).as_deref() == Some("delete") {
            merged.retain(|it| !is_same(it));
            continue;
        }
        if let Some(Value::Object(fields)) = merged.iter_mut().find(|it| is_same(it)) {
            object(fields, patch, &of)?;
        } else {
            let mut made = Map::new();
            object(&mut made, patch, &of)?;
            merged.push(made.into());
        }
    }
    Ok(arrange(merged, new, &server, Some(key)))
}

/// Sorts the elements that a patch names into the order of the patch; the others keep their place relative to them on
/// the server.
fn arrange(merged: Vec<Value>, order: &[Value], server: &[Value], key: Option<&str>) -> Vec<Value> {
    let of = |it: &Value| key.map_or_else(|| Some(it.clone()), |key| it.get(key).cloned());
    let place = |list: &[Value], it: &Value| {
        let own = of(it);
        list.iter().position(|it| of(it) == own)
    };
    let (mut named, others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|it| place(order, it).is_some());
    named.sort_by_key(|it| place(order, it));
    let mut named = named.into_iter().peekable();
    let mut all = Vec::new();
    for other in others {
        let goes_first = |it: &Value| {
            let places = place(server, &other).zip(place(server, it));
            places.is_none_or(|(other, it)| it < other)
        };
        while let Some(first) = named.next_if(|it| goes_first(it)) {
            all.push(first);
        }
        all.push(other);
    }
    all.extend(named);
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(patch: &Value) -> Value {
        let value = json!({
            "metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["x/a", "x/b"]},
            "spec": {"ports": [{"name": "a", "port": 80, "nodePort": 30_000}, {"name": "b", "port": 81}],
                "selector": {"app": "web"}, "externalIPs": ["192.0.2.1"]},
        });
        merge(value, patch, "core.Service").unwrap()
    }

    #[test]
    fn statement_84_lists_merge_by_their_key() {
        let merged =
            service(&json!({"spec": {"ports": [{"port": 80, "name": "c"}, {"port": 82}]}}));
        assert_eq!(
            merged["spec"]["ports"],
            json!([{"name": "c", "port": 80, "nodePort": 30_000}, {"port": 82}, {"name": "b", "port": 81}])
        );
        let replaced = service(&json!({"spec": {"externalIPs": ["192.0.2.2"]}}));
        assert_eq!(replaced["spec"]["externalIPs"], json!(["192.0.2.2"]));
        let union = service(&json!({"metadata": {"finalizers": ["x/c", "x/a"]}}));
        assert_eq!(union["metadata"]["finalizers"], json!(["x/c", "x/a", "x/b"]));
    }

    #[test]
    fn statement_84_directives() {
        let deleted = service(&json!({"spec": {"ports": [{"port": 80, "$patch": "delete"}]}}));
        assert_eq!(deleted["spec"]["ports"], json!([{"name": "b", "port": 81}]));
        let replaced = service(&json!({"spec": {"ports": [{"$patch": "replace"}, {"port": 9}]}}));
        assert_eq!(replaced["spec"]["ports"], json!([{"port": 9}]));
        let ordered =
            service(&json!({"spec": {"$setElementOrder/ports": [{"port": 81}, {"port": 80}]}}));
        assert_eq!(ordered["spec"]["ports"][0]["port"], 81);
        let fewer = service(&json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/a"]}}));
        assert_eq!(fewer["metadata"]["finalizers"], json!(["x/b"]));
        let kept = service(&json!({"metadata": {"labels": {"$retainKeys": ["a"], "a": "3"}}}));
        assert_eq!(kept["metadata"]["labels"], json!({"a": "3"}));
        let none =
            service(&json!({"spec": {"selector": null}, "metadata": {"labels": {"b": null}}}));
        assert_eq!(
            (none["spec"].get("selector"), &none["metadata"]["labels"]),
            (None, &json!({"a": "1"}))
        );
    }

    #[test]
    fn a_patch_without_the_key_is_refused() {
        let patch = json!({"spec": {"ports": [{"name": "a"}]}});
        let refused = merge(json!({"spec": {"ports": []}}), &patch, "core.Service").unwrap_err();
        assert!(refused.contains("does not contain declared merge key: port"), "{refused}");
    }
}
