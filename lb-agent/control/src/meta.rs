//! The metadata of every object, and the rules for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::check::{self, Faults};
use crate::field::Cause;

/// The metadata of an object; empty values are not set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "these are the API's own names")]
pub struct Meta {
    pub name: String,
    pub generate_name: String,
    pub namespace: String,
    pub self_link: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
    pub deletion_grace_period_seconds: Option<i64>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub owner_references: Vec<Owner>,
    pub finalizers: Vec<String>,
    #[serde(skip_serializing)]
    pub managed_fields: Value,
}

/// An owner of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "these are the API's own names")]
pub struct Owner {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

/// A function that checks the names of a kind.
pub(crate) type NameRule = fn(&str) -> Faults;

/// Checks a name that only has to be usable in a path.
pub(crate) fn path_segment(name: &str) -> Faults {
    let whole = [".", ".."].into_iter().filter(|it| *it == name);
    let whole = whole.map(|it| format!("may not be '{it}'"));
    let parts = ["/", "%"].into_iter().filter(|it| name.contains(it));
    whole.chain(parts.map(|it| format!("may not contain '{it}'"))).collect()
}

/// Checks a `generateName`: a hyphen at its end is valid, because more characters follow.
fn prefix_of(rule: NameRule, prefix: &str) -> Faults {
    rule(prefix.strip_suffix('-').map_or_else(|| prefix.to_owned(), |it| format!("{it}a")).as_str())
}

/// Applies the rules for metadata that new and updated objects must satisfy.
pub(crate) fn validate(meta: &Meta, is_namespaced: bool, rule: NameRule) -> Vec<Cause> {
    let mut causes = Vec::new();
    if !meta.generate_name.is_empty() {
        let faults = prefix_of(rule, &meta.generate_name).into_iter();
        let value = meta.generate_name.as_str();
        causes.extend(faults.map(|it| Cause::invalid("metadata.generateName", value, &it)));
    }
    if meta.name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else {
        let faults = rule(&meta.name).into_iter();
        causes.extend(faults.map(|it| Cause::invalid("metadata.name", meta.name.as_str(), &it)));
    }
    causes.extend(namespace(meta, is_namespaced));
    if meta.generation < 0 {
        let detail = "must be greater than or equal to 0";
        causes.push(Cause::invalid("metadata.generation", meta.generation, detail));
    }
    causes.extend(check::labels(&meta.labels, "metadata.labels"));
    causes.extend(check::annotations(&meta.annotations, "metadata.annotations"));
    causes.extend(owners(&meta.owner_references));
    for finalizer in &meta.finalizers {
        let faults = check::label_key(finalizer).into_iter();
        let value = finalizer.as_str();
        causes.extend(faults.map(|it| Cause::invalid("metadata.finalizers", value, &it)));
    }
    causes
}

fn namespace(meta: &Meta, is_namespaced: bool) -> Vec<Cause> {
    let field = "metadata.namespace";
    match (is_namespaced, meta.namespace.as_str()) {
        (true, "") => vec![Cause::required(field, "")],
        (true, name) => {
            let faults = check::dns_label(name).into_iter();
            faults.map(|it| Cause::invalid(field, name, &it)).collect()
        }
        (false, "") => Vec::new(),
        (false, _) => vec![Cause::forbidden(field, "not allowed on this type")],
    }
}

fn owners(owners: &[Owner]) -> Vec<Cause> {
    let field = "metadata.ownerReferences";
    let mut causes = Vec::new();
    let mut first: Option<String> = None;
    for owner in owners {
        let parts = [
            ("apiVersion", &owner.api_version, "version must not be empty"),
            ("kind", &owner.kind, "must not be empty"),
            ("name", &owner.name, "must not be empty"),
            ("uid", &owner.uid, "must not be empty"),
        ];
        let empty = parts.into_iter().filter(|it| it.1.is_empty());
        causes.extend(
            empty.map(|(name, _, detail)| Cause::invalid(format!("{field}.{name}"), "", detail)),
        );
        if owner.controller == Some(true) {
            let this = format!("{}/{}", owner.kind, owner.name);
            // Two controllers would both adopt and change the object.
            if let Some(first) = &first {
                let all = serde_json::to_value(owners).unwrap_or_default();
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                );
                causes.push(Cause::invalid(field, all, &detail));
            } else {
                first = Some(this);
            }
        }
    }
    causes
}

/// Checks that an update leaves the immutable fields of the metadata alone.
pub(crate) fn validate_update(new: &Meta, old: &Meta) -> Vec<Cause> {
    let mut causes = Vec::new();
    // A new finalizer could keep the object for ever although its deletion was accepted.
    if old.deletion_timestamp.is_some() {
        let mut added: Vec<&String> =
            new.finalizers.iter().filter(|it| !old.finalizers.contains(it)).collect();
        added.sort();
        if !added.is_empty() {
            let listed: Vec<String> = added.iter().map(|it| format!("{it:?}")).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                listed.join(", ")
            );
            causes.push(Cause::forbidden("metadata.finalizers", &detail));
        }
    }
    let fields = [
        ("name", &new.name, &old.name),
        ("namespace", &new.namespace, &old.namespace),
        ("uid", &new.uid, &old.uid),
    ];
    let changed = fields.into_iter().filter(|it| it.1 != it.2);
    causes.extend(changed.map(|(name, value, _)| {
        Cause::invalid(format!("metadata.{name}"), value.as_str(), "field is immutable")
    }));
    causes
}
