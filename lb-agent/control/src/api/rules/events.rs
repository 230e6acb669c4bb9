//! Events have two forms: the older is kept, the newer is made of it and turned into it.

use serde_json::{Map, Value};

/// Newer name, older name.
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

/// The older form of a newer Event.
pub(crate) fn kept(value: Value) -> Value {
    let older = |name: &str| {
        let found = NAMES.iter().find(|it| it.0 == name);
        found.map_or_else(|| name.to_owned(), |it| it.1.to_owned())
    };
    let mut fields = renamed(value, older);
    drop(fields.insert("apiVersion".into(), "v1".into()));
    fields.into()
}

/// The newer form of an older Event.
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
