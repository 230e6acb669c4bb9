//! Deletion: at once, or as soon as the last finalizer is removed.

use std::sync::Arc;

use hyper::body::Bytes;
use hyper::http::request::Parts;
use serde_json::{Value, json};

use super::answer::Answer;
use super::failure::Failure;
use super::form::Form;
use super::metadata::{set, text};
use super::query::{self, Query};
use super::server::Server;
use super::target::Target;
use super::write::Wish;
use super::{body, bootstrap, list, rules};
use crate::kind::{KINDS, Kind};
use crate::schema;
use crate::store::{Key, Object, Transaction};

/// The preconditions of a deletion, and how it is done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    uid: Option<String>,
    revision: Option<String>,
    pub(crate) is_dry: bool,
}

impl Options {
    pub(crate) fn of(parts: &Parts, bytes: &[u8]) -> Result<Self, Failure> {
        let query = Query::of(parts);
        let mut options = Self { is_dry: query.is_dry("DeleteOptions")?, ..Self::default() };
        if bytes.is_empty() {
            return Ok(options);
        }
        let given = body::plain(parts, bytes, "meta.DeleteOptions")?;
        let text = |path: &str| given.pointer(path).and_then(Value::as_str).map(str::to_owned);
        options.uid = text("/preconditions/uid");
        options.revision = text("/preconditions/resourceVersion");
        let dry = given.get("dryRun").and_then(Value::as_array);
        let dry: Vec<&str> = dry.into_iter().flatten().filter_map(Value::as_str).collect();
        // Both the query and the body can request a dry run.
        options.is_dry |= query::dry(&dry, "DeleteOptions")?;
        Ok(options)
    }

    fn check(&self, kind: &Kind, object: &Object) -> Result<(), Failure> {
        let (value, name) = (object.value(), &object.key.name);
        let parts = [
            ("UID", &self.uid, "uid", "deleted and then recreated"),
            ("ResourceVersion", &self.revision, "resourceVersion", "modified"),
        ];
        for (word, wanted, field, happened) in parts {
            let is = text(&value, field);
            if let Some(wanted) = wanted.as_ref().filter(|it| *it != is) {
                let message = format!(
                    "Operation cannot be fulfilled on {} {name:?}: the {word} in the precondition ({wanted}) does not match the {word} in record ({is}). The object might have been {happened}",
                    kind.qualified_kind()
                );
                let failure = Failure::new(409, "Conflict", message);
                return Err(failure.of(name, kind.kind, kind.group));
            }
        }
        Ok(())
    }
}

/// Answers with the deleted object, or with the object that remains until its finalizers are removed.
pub(crate) async fn delete(
    server: &Server,
    parts: &Parts,
    target: Target,
    bytes: Bytes,
) -> Result<Answer, Failure> {
    let (form, query) = (Form::of(parts)?, Query::of(parts));
    let options = Options::of(parts, &bytes)?;
    let wish = Wish::new(server, &target, options.is_dry);
    let name = target.name().to_owned();
    let (object, stays) = server
        .store
        .write(move |it| {
            let object = it.get(&wish.key(&name));
            let object = object.ok_or_else(|| Failure::not_found(wish.kind, &name))?;
            options.check(wish.kind, &object)?;
            if bootstrap::is_immortal(&object.key) {
                let why = "this namespace may not be deleted";
                return Err(Failure::forbidden(wish.kind, &name, why));
            }
            let ended = end(it, wish.kind, &object, wish.is_dry);
            bootstrap::restore(it, &wish, &object.key);
            Ok(ended)
        })
        .await??;
    let kind = target.kind;
    // Upstream answers with the object for these kinds, and with a Status for the others.
    if stays || matches!(kind.resource, "services" | "pods" | "namespaces") {
        return Ok(list::one(200, &object, &target, form, &query));
    }
    let mut details = json!({"name": object.key.name, "kind": kind.resource, "uid": text(&object.value(), "uid")});
    if let (false, Some(fields)) = (kind.group.is_empty(), details.as_object_mut()) {
        drop(fields.insert("group".into(), kind.group.into()));
    }
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    Ok(Answer::value(200, &status, form))
}

/// Deletes an object. Returns it, and whether it remains because of finalizers or, for a namespace, its content.
pub(crate) fn end(
    transaction: &mut Transaction<'_>,
    kind: &Kind,
    object: &Arc<Object>,
    is_dry: bool,
) -> (Arc<Object>, bool) {
    let mut value = object.value();
    // A dry run must not delete the content of a namespace to learn whether it is empty.
    let is_full = kind.resource == "namespaces" && !is_dry && !empty(transaction, &object.key.name);
    if has_finalizers(&value) || is_full {
        if text(&value, "deletionTimestamp").is_empty() {
            set(&mut value, "deletionTimestamp", schema::now().into());
            set(&mut value, "deletionGracePeriodSeconds", 0.into());
            rules::terminating(kind, &mut value);
            if is_dry {
                let unstored = Object::unstored(object.key.clone(), &value);
                return (Arc::new(unstored.at(object.revision)), true);
            }
            return (transaction.put(object.key.clone(), value), true);
        }
        return (Arc::clone(object), true);
    }
    if is_dry {
        return (Arc::clone(object), false);
    }
    remove(transaction, &object.key, None);
    (Arc::clone(object), false)
}

/// Reports whether an object must stay until clients have removed its finalizers.
pub(crate) fn has_finalizers(value: &Value) -> bool {
    !value.pointer("/metadata/finalizers").is_none_or(schema::is_zero)
}

/// Reports whether objects are in a namespace.
pub(crate) fn has_content(transaction: &Transaction<'_>, namespace: &str) -> bool {
    let mut kinds = KINDS.iter().filter(|it| it.is_namespaced);
    kinds.any(|it| !transaction.list(it.resource, Some(namespace)).is_empty())
}

/// Deletes the objects in a namespace; reports whether none is left.
fn empty(transaction: &mut Transaction<'_>, namespace: &str) -> bool {
    let mut is_empty = true;
    for kind in KINDS.iter().filter(|it| it.is_namespaced && it.group != "events.k8s.io") {
        for object in transaction.list(kind.resource, Some(namespace)) {
            // A slice may have been deleted with its Service earlier in this loop.
            if transaction.get(&object.key).is_some() {
                let (_, stays) = end(transaction, kind, &object, false);
                is_empty &= !stays;
            }
        }
    }
    is_empty
}

/// Removes an object with its bookings and the slices it owns, and its namespace if that waited for this object.
///
/// `last` is the final state that watches see, if it differs from the stored one.
pub(crate) fn remove(transaction: &mut Transaction<'_>, key: &Key, last: Option<Value>) {
    let Some(last) = transaction.end(key, last) else { return };
    let value = last.value();
    if key.resource == "services" {
        rules::addresses::release(transaction, &value);
    }
    // The garbage collector of upstream's controller manager removes owned objects; no such controller runs here.
    if matches!(key.resource.as_str(), "services" | "pods" | "nodes") {
        let namespace = (!key.namespace.is_empty()).then_some(key.namespace.as_str());
        end_owned_slices(transaction, namespace, text(&value, "uid"));
    }
    if !key.namespace.is_empty() {
        let namespace = Key::new("namespaces", "", &key.namespace);
        let is_over = |it: &Value| !text(it, "deletionTimestamp").is_empty() && !has_finalizers(it);
        // A namespace that is being deleted disappears with its last object, unless it has finalizers of its own.
        if transaction.get(&namespace).is_some_and(|it| is_over(&it.value()))
            && !has_content(transaction, &key.namespace)
        {
            drop(transaction.delete(&namespace));
        }
    }
}

/// Ends the slices that the object with this uid owned, unless they have another owner.
fn end_owned_slices(transaction: &mut Transaction<'_>, namespace: Option<&str>, uid: &str) {
    let Some(kind) = Kind::find("discovery.k8s.io", "endpointslices") else { return };
    for slice in transaction.list(kind.resource, namespace) {
        let value = slice.value();
        let owners = value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
        let owners = owners.map_or(&[][..], Vec::as_slice);
        let is_owned = owners.iter().any(|it| field(it, "uid") == uid);
        if is_owned && !owners.iter().any(|it| is_there(transaction, it, &slice.key.namespace)) {
            drop(end(transaction, kind, &slice, false));
        }
    }
}

/// Reports whether an owner exists, with the uid of the reference; `namespace` is that of the owned object.
fn is_there(transaction: &Transaction<'_>, owner: &Value, namespace: &str) -> bool {
    let is_kind = |it: &&Kind| {
        it.kind == field(owner, "kind") && it.api_version() == field(owner, "apiVersion")
    };
    KINDS.iter().find(is_kind).is_some_and(|kind| {
        let namespace = if kind.is_namespaced { namespace } else { "" };
        let object = transaction.get(&Key::new(kind.resource, namespace, field(owner, "name")));
        object.is_some_and(|it| text(&it.value(), "uid") == field(owner, "uid"))
    })
}

fn field<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}
