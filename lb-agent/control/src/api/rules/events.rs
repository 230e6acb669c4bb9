//! Events exist in two API groups. The core form is stored; the form of `events.k8s.io` is derived from it.

use serde_json::{Map, Value};

/// Pairs of field names: the one of `events.k8s.io`, the one of the core group.
const NAMES: [(&str, &str); 9] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("kind", "kind"),
    ("apiVersion", "apiVersion"),
];

fn renamed(value: Value, name: impl Fn(&str) -> String) -> Map<String, Value> {
    let Value::Object(fields) = value else { return Map::new() };
    fields.into_iter().map(|(key, value)| (name(&key), value)).collect()
}

/// Converts an Event of `events.k8s.io` to the core form.
pub(crate) fn kept(value: Value) -> Value {
    let older = |name: &str| {
        let found = NAMES.iter().find(|it| it.0 == name);
        found.map_or_else(|| name.to_owned(), |it| it.1.to_owned())
    };
    let mut fields = renamed(value, older);
    drop(fields.insert("apiVersion".into(), "v1".into()));
    fields.into()
}

/// Converts a core Event to the form of `events.k8s.io`.
pub(crate) fn translated(value: Value) -> Value {
    let newer = |name: &str| {
        let found = NAMES.iter().find(|it| it.1 == name);
        found.map_or_else(|| name.to_owned(), |it| it.0.to_owned())
    };
    let mut fields = renamed(value, newer);
    drop(fields.insert("apiVersion".into(), "events.k8s.io/v1".into()));
    fields.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_forms_say_the_same() {
        let newer = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "n",
            "regarding": {"name": "a"}, "reason": "R", "reportingController": "c"});
        let older = kept(newer.clone());
        assert_eq!(older["involvedObject"]["name"], "a");
        assert_eq!((&older["message"], &older["apiVersion"]), (&json!("n"), &json!("v1")));
        assert_eq!(translated(older), newer);
    }
}
