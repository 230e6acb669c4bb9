//! Normal form: identity, time, revisions and random choices, which may differ, are made the same.

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::client::Reply;

/// A reply without what may differ.
pub(crate) fn reply(reply: &Reply) -> Reply {
    Reply { body: value(None, &reply.body), ..reply.clone() }
}

fn value(key: Option<&str>, of: &Value) -> Value {
    match of {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|it| it.0 != "managedFields");
            let fields = fields.map(|(key, it)| (key.clone(), value(Some(key), it)));
            Value::Object(fields.collect::<Map<_, _>>())
        }
        // Upstream tells faults of metadata up to three times in an update (docs/adr/0033).
        Value::Array(all) if key == Some("causes") => {
            let mut once: Vec<Value> = Vec::new();
            for cause in all.iter().map(|it| value(key, it)) {
                if !once.contains(&cause) {
                    once.push(cause);
                }
            }
            once.into()
        }
        Value::Array(all) => all.iter().map(|it| value(key, it)).collect(),
        Value::String(_)
            if matches!(
                key,
                Some(
                    "uid"
                        | "resourceVersion"
                        | "creationTimestamp"
                        | "deletionTimestamp"
                        | "continue"
                )
            ) =>
        {
            "<any>".into()
        }
        Value::String(_) if key == Some("description") => "".into(),
        Value::String(it) if key == Some("cells") && is_age(it) => "<age>".into(),
        Value::String(it) => text(&without_store_words(it)).into(),
        Value::Number(it)
            if matches!(key, Some("nodePort" | "healthCheckNodePort"))
                && it.as_i64() >= Some(30_086) =>
        {
            "<port>".into()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => of.clone(),
    }
}

/// Words that upstream's store adds to a failed precondition are left out (docs/adr/0033).
fn without_store_words(text: &str) -> String {
    match (text.split_once("StorageError: "), text.split_once("AdditionalErrorMsg: ")) {
        (Some((head, _)), Some((_, tail))) => format!("{head}{tail}"),
        _ => text.to_owned(),
    }
}

fn is_age(text: &str) -> bool {
    let digits = |it: &str| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit());
    text.strip_suffix('s').is_some_and(|it| it.split('m').all(digits))
        || text.strip_suffix('m').is_some_and(digits)
}

/// Words within a text: addresses and ports of the upper bands, identities, revisions.
fn text(of: &str) -> String {
    let is_part = |it: char| it.is_ascii_alphanumeric() || ":.-".contains(it);
    let mut words: Vec<String> = Vec::new();
    for word in of.split_inclusive(|it: char| !is_part(it)) {
        let end = word.find(|it: char| !is_part(it)).unwrap_or(word.len());
        let (core, rest) = word.split_at(end);
        words.push(format!("{}{rest}", one(core)));
    }
    words.concat()
}

fn one(word: &str) -> String {
    let is_uid = word.len() == 36 && word.matches('-').count() == 4;
    match word.parse::<IpAddr>() {
        Ok(IpAddr::V4(it))
            if it.octets().starts_with(&[10, 96])
                && it.octets()[2] > 0
                && it.octets() != [10, 96, 255, 255] =>
        {
            "<ip4>".into()
        }
        Ok(IpAddr::V6(it))
            if it.segments().starts_with(&[0xfd00, 0x10, 0x96]) && it.segments()[7] > 0x100 =>
        {
            "<ip6>".into()
        }
        _ if is_uid => "<uid>".into(),
        _ if word.parse::<u32>().is_ok_and(|it| (30_086..32_768).contains(&it)) => "<port>".into(),
        _ if word.contains(':') && word.parse::<IpAddr>().is_err() => {
            let parts: Vec<String> = word.split(':').map(one).collect();
            parts.join(":")
        }
        _ => word.to_owned(),
    }
}

/// Both answers, as far as they differ.
pub(crate) fn difference(theirs: &Reply, own: &Reply) -> String {
    let mut lines = Vec::new();
    if theirs.code != own.code {
        lines.push(format!("code: {} | {}", theirs.code, own.code));
    }
    if theirs.warnings != own.warnings {
        lines.push(format!("warnings: {:?} | {:?}", theirs.warnings, own.warnings));
    }
    differing("", &theirs.body, &own.body, &mut lines);
    lines.join("\n")
}

fn differing(path: &str, theirs: &Value, own: &Value, lines: &mut Vec<String>) {
    match (theirs, own) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<&String> =
                left.keys().chain(right.keys()).collect();
            for key in keys {
                let of = |it: &Map<String, Value>| {
                    it.get(key).cloned().unwrap_or_else(|| "<absent>".into())
                };
                differing(&format!("{path}.{key}"), &of(left), &of(right), lines);
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                differing(&format!("{path}[{index}]"), left, right, lines);
            }
        }
        (left, right) if left == right => {}
        (left, right) => lines.push(format!("{path}: {left}\n   ours: {right}")),
    }
}

/// Without changes of nothing but `managedFields`, which ours has not (docs/adr/0033).
fn visible(all: Vec<Value>) -> Vec<Value> {
    let mut last: Map<String, Value> = Map::new();
    let mut kept = Vec::new();
    for event in all {
        let name = event["object"]["metadata"]["name"].to_string();
        let before = last.insert(name, event["object"].clone());
        if event["type"] != "MODIFIED" || before.as_ref() != Some(&event["object"]) {
            kept.push(event);
        }
    }
    kept
}

/// Differences between the events of two watches.
pub(crate) fn events(theirs: &[Value], own: &[Value]) -> Option<String> {
    let of = |all: &[Value]| -> Vec<Value> { all.iter().map(|it| value(None, it)).collect() };
    let (theirs, own) = (visible(of(theirs)), of(own));
    let first = theirs.iter().zip(&own).position(|(left, right)| left != right);
    let at =
        first.or_else(|| (theirs.len() != own.len()).then_some(theirs.len().min(own.len())))?;
    let names = |all: &[Value]| -> Vec<String> {
        let around = all.iter().skip(at.saturating_sub(3)).take(6);
        around.map(|it| format!("{} {}", it["type"], it["object"]["metadata"]["name"])).collect()
    };
    let mut lines = vec![format!("event {at} of {} | {}", theirs.len(), own.len())];
    lines.push(format!("{:?} | {:?}", names(&theirs), names(&own)));
    let none = Value::Null;
    differing("", theirs.get(at).unwrap_or(&none), own.get(at).unwrap_or(&none), &mut lines);
    Some(lines.join("\n"))
}
