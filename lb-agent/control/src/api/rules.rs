//! The rules of each kind: defaults, validation and allocation for an object that is created or updated.

use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::metadata::{name_of, set};
use super::write::Wish;
use crate::field::Cause;
use crate::kind::Kind;
use crate::meta::{self, Meta, NameRule};
use crate::service::{self, Decision, Refusal, Service};
use crate::store::{Object, Transaction};
use crate::{check, schema};

pub(crate) mod addresses;
mod events;
mod pods;
mod slices;

pub(crate) use events::translated;

/// An object that satisfies the rules of its kind, and the bookings that it needs.
#[derive(Debug)]
pub(crate) struct Ruled {
    pub(crate) value: Value,
    pub(crate) decision: Option<Decision>,
    pub(crate) warnings: Vec<String>,
}

impl Ruled {
    const fn plain(value: Value) -> Self {
        Self { value, decision: None, warnings: Vec::new() }
    }
}

/// Returns an object in its stored form: Events of `events.k8s.io` are stored as core Events.
pub(crate) fn kept_form(kind: &Kind, value: Value) -> Value {
    if kind.group == "events.k8s.io" { events::kept(value) } else { value }
}

/// Applies the rules for a new object.
pub(crate) fn create(
    transaction: &Transaction<'_>,
    wish: &Wish,
    mut value: Value,
) -> Result<Ruled, Failure> {
    let kind = wish.kind;
    let name = name_of(&value).to_owned();
    let invalid = |causes: &[Cause]| Failure::invalid(kind, &name, causes);
    let mut ruled = if kind.resource == "services" {
        let new = service_of(value)?;
        let decided = service::create(new, &wish.ranges, transaction, &mut dice, wish.is_dry);
        of_service(decided.map_err(|it| Failure::refused(kind, &name, &it))?)
    } else {
        defaults(kind, &mut value);
        let metadata = meta_of(&value);
        let mut causes = meta::validate(&metadata, kind.is_namespaced, name_rule(kind));
        causes.extend(rules(kind, &value, None));
        if !causes.is_empty() {
            return Err(invalid(&causes));
        }
        Ruled::plain(value)
    };
    if kind.resource == "endpointslices" {
        set(&mut ruled.value, "generation", 1.into());
    }
    name_kind(kind, &mut ruled.value);
    Ok(ruled)
}

/// Applies the rules for an update; `old` is the stored object.
pub(crate) fn update(
    transaction: &Transaction<'_>,
    wish: &Wish,
    mut value: Value,
    old: &Value,
) -> Result<Ruled, Failure> {
    let kind = wish.kind;
    let name = name_of(old).to_owned();
    let mut ruled = if kind.resource == "services" {
        let (new, before) = (service_of(value)?, service_of(old.clone())?);
        if wish.is_status {
            let refused = |it| Failure::refused(kind, &name, &Refusal::Invalid(it));
            let kept = service::update_status(new, &before).map_err(refused)?;
            Ruled::plain(serde_json::to_value(kept).unwrap_or_default())
        } else {
            let decided =
                service::update(new, &before, &wish.ranges, transaction, &mut dice, wish.is_dry);
            of_service(decided.map_err(|it| Failure::refused(kind, &name, &it))?)
        }
    } else {
        if kind.has_status {
            // An update of the object must not change its status, nor an update of the status its spec.
            let part = if wish.is_status { "spec" } else { "status" };
            carry(&mut value, old, part);
        }
        defaults(kind, &mut value);
        let (new, before) = (meta_of(&value), meta_of(old));
        let mut causes = meta::validate(&new, kind.is_namespaced, meta::path_segment);
        causes.extend(meta::validate_update(&new, &before));
        causes.extend(rules(kind, &value, Some(old)));
        if !causes.is_empty() {
            return Err(Failure::invalid(kind, &name, &causes));
        }
        Ruled::plain(value)
    };
    name_kind(kind, &mut ruled.value);
    Ok(ruled)
}

/// Returns a random number from 0 to `most - 1`.
fn dice(most: u64) -> u64 {
    fastrand::u64(..most)
}

/// Copies a part of the stored object into the new one: another path writes that part (spec or status).
fn carry(value: &mut Value, old: &Value, part: &str) {
    if let Some(fields) = value.as_object_mut() {
        drop(match old.get(part) {
            Some(before) => fields.insert(part.into(), before.clone()),
            None => fields.remove(part),
        });
    }
}

fn service_of(value: Value) -> Result<Service, Failure> {
    serde_json::from_value(value).map_err(|error| Failure::internal(&error.to_string()))
}

fn of_service(decision: Decision) -> Ruled {
    Ruled {
        value: serde_json::to_value(&decision.service).unwrap_or_default(),
        warnings: service::warnings(&decision.service),
        decision: Some(decision),
    }
}

fn meta_of(value: &Value) -> Meta {
    let metadata = value.get("metadata").cloned().unwrap_or_default();
    serde_json::from_value(metadata).unwrap_or_default()
}

fn name_kind(kind: &Kind, value: &mut Value) {
    let kept = Kind::kept(kind.resource).unwrap_or(kind);
    if let Some(fields) = value.as_object_mut() {
        drop(fields.insert("kind".into(), kept.kind.into()));
        drop(fields.insert("apiVersion".into(), kept.api_version().into()));
    }
}

fn name_rule(kind: &Kind) -> NameRule {
    if kind.resource == "namespaces" { check::dns_label } else { check::dns_subdomain }
}

/// Fills in defaults for fields that the client left out.
fn defaults(kind: &Kind, value: &mut Value) {
    match kind.resource {
        "pods" => pods::defaults(value),
        "endpointslices" => slices::defaults(value),
        "namespaces" => {
            let name = name_of(value).to_owned();
            let Some(fields) = value.as_object_mut() else { return };
            let spec = fields.entry("spec").or_insert_with(|| Map::new().into());
            // As upstream sets them on every Namespace; kubectl shows the phase.
            if spec.get("finalizers").is_none() {
                *spec = json!({"finalizers": ["kubernetes"]});
            }
            let status = fields.entry("status").or_insert_with(|| Map::new().into());
            if status.get("phase").is_none() {
                *status = json!({"phase": "Active"});
            }
            let labels = fields.get_mut("metadata").and_then(Value::as_object_mut);
            let labels = labels.map(|it| it.entry("labels").or_insert_with(|| Map::new().into()));
            if let Some(Value::Object(labels)) = labels {
                drop(labels.insert("kubernetes.io/metadata.name".into(), name.into()));
            }
        }
        _ => {}
    }
}

fn rules(kind: &Kind, value: &Value, old: Option<&Value>) -> Vec<Cause> {
    match kind.resource {
        "pods" => pods::validate(value, old),
        "endpointslices" => slices::validate(value, old),
        _ => Vec::new(),
    }
}

/// Increments the generation of a slice if its endpoints, ports, address type or labels change.
pub(crate) fn generation(kind: &Kind, value: &mut Value, old: &Object) {
    if kind.resource != "endpointslices" {
        return;
    }
    // Both in the stored form, which has structs that a client may leave out, such as `conditions`.
    let (before, now) = (old.value(), Object::unstored(old.key.clone(), value).value());
    let part =
        // An empty list and a missing one are equal.
        |value: &Value, name: &str| value.pointer(name).filter(|it| !schema::is_zero(it)).cloned();
    let parts = ["/endpoints", "/ports", "/addressType", "/metadata/labels"];
    if parts.iter().any(|it| part(&now, it) != part(&before, it)) {
        let generation = before.pointer("/metadata/generation").and_then(Value::as_i64);
        set(value, "generation", (generation.unwrap_or(0) + 1).into());
    }
}

/// Sets the phase of a namespace that is being emptied to Terminating.
pub(crate) fn terminating(kind: &Kind, value: &mut Value) {
    if let ("namespaces", Some(fields)) = (kind.resource, value.as_object_mut()) {
        drop(fields.insert("status".into(), json!({"phase": "Terminating"})));
    }
}
