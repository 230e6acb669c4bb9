//! Creation: from a body to a new object.

use std::sync::Arc;

use hyper::body::Bytes;
use hyper::http::request::Parts;
use serde_json::Value;

use super::answer::Answer;
use super::failure::Failure;
use super::metadata::{name_of, set, text, uid};
use super::server::Server;
use super::target::Target;
use super::write::{Made, Wish, Write};
use super::{body, list, rules};
use crate::kind::Kind;
use crate::schema;
use crate::store::{Key, Object, Transaction};

/// Answers with the new object.
pub(crate) async fn create(
    server: &Server,
    parts: &Parts,
    target: Target,
    bytes: Bytes,
) -> Result<Answer, Failure> {
    let Write { form, query, validation, wish } =
        Write::of(server, parts, &target, "CreateOptions")?;
    let sent = body::object(parts, &bytes, target.kind, validation)?;
    // The object is converted to the stored form before the rules see it.
    let value = rules::kept_form(target.kind, sent.value);
    let made = server.store.write(move |it| make(it, &wish, value)).await?;
    let made = made.map_err(|it| it.warned(&sent.warnings))?;
    let warnings = sent.warnings.into_iter().chain(made.warnings).collect();
    Ok(list::one(201, &made.object, &target, form, &query).with_warnings(warnings))
}

/// Creates an object, or fails if the name is in use.
pub(crate) fn make(
    transaction: &mut Transaction<'_>,
    wish: &Wish,
    mut value: Value,
) -> Result<Made, Failure> {
    let kind = wish.kind;
    begin(&mut value, wish)?;
    ensure_namespace(transaction, wish, name_of(&value))?;
    let generated = text(&value, "generateName").to_owned();
    if name_of(&value).is_empty() && !generated.is_empty() {
        // `generateName` retries taken names; upstream gives up after eight attempts as well.
        let mut names = (0..8).map(|_| generate(&generated));
        let is_free = |it: &String| transaction.get(&wish.key(it)).is_none();
        let name = names.find(is_free).unwrap_or_else(|| generate(&generated));
        set(&mut value, "name", name.into());
    }
    let ruled = rules::create(transaction, wish, value)?;
    let name = name_of(&ruled.value).to_owned();
    let key = wish.key(&name);
    if let Some(other) = transaction.get(&key) {
        let mut failure = Failure::exists(kind, &name).warned(&ruled.warnings);
        if !text(&other.value(), "deletionTimestamp").is_empty() {
            failure.message = format!("object is being deleted: {}", failure.message);
        }
        return Err(failure);
    }
    let warnings = ruled.warnings.clone();
    let object = keep(transaction, wish, key, ruled);
    Ok(Made { object, warnings, is_new: true })
}

/// Writes the object that the rules returned, with its bookings; a dry run writes nothing.
pub(crate) fn keep(
    transaction: &mut Transaction<'_>,
    wish: &Wish,
    key: Key,
    ruled: rules::Ruled,
) -> Arc<Object> {
    if wish.is_dry {
        return Arc::new(Object::unstored(key, &ruled.value));
    }
    if let Some(decision) = &ruled.decision {
        // The bookings are part of the same transaction, so that no address is booked without its Service.
        transaction.book(decision);
        rules::addresses::keep(transaction, decision);
    }
    transaction.put(key, ruled.value)
}

/// Sets namespace, UID and creation time of a new object.
fn begin(value: &mut Value, wish: &Wish) -> Result<(), Failure> {
    place(value, wish)?;
    if !text(value, "resourceVersion").is_empty() {
        // Upstream answers 500 here; the client is at fault, so this answers 400.
        return Err(Failure::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    set(value, "uid", uid().into());
    set(value, "creationTimestamp", schema::now().into());
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"] {
        set(value, field, Value::Null);
    }
    set(value, "generation", Value::Null);
    Ok(())
}

/// Checks that an object lies where the request's path says, and fills in its namespace.
pub(crate) fn place(value: &mut Value, wish: &Wish) -> Result<(), Failure> {
    let given = text(value, "namespace").to_owned();
    if given.is_empty() && wish.kind.is_namespaced {
        set(value, "namespace", wish.namespace.as_str().into());
    } else if given != wish.namespace && wish.kind.is_namespaced {
        let message =
            "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Failure::bad_request(message));
    }
    Ok(())
}

fn ensure_namespace(transaction: &Transaction<'_>, wish: &Wish, name: &str) -> Result<(), Failure> {
    if !wish.kind.is_namespaced {
        return Ok(());
    }
    let namespaces = Kind::find("", "namespaces").ok_or_else(Failure::no_path)?;
    let namespace = transaction.get(&Key::new("namespaces", "", &wish.namespace));
    let namespace = namespace.ok_or_else(|| Failure::not_found(namespaces, &wish.namespace))?;
    // An object created now could be left over when the namespace is gone.
    if namespace.value().pointer("/metadata/deletionTimestamp").is_none() {
        return Ok(());
    }
    let place = &wish.namespace;
    let why =
        format!("unable to create new content in namespace {place} because it is being terminated");
    Err(Failure::forbidden(wish.kind, name, &why))
}

/// Appends five random characters to at most 58 of `prefix`, as upstream's name generator does: 63 is the longest
/// label, and the alphabet forms no words.
fn generate(prefix: &str) -> String {
    let alphabet: Vec<char> = "bcdfghjklmnpqrstvwxz2456789".chars().collect();
    let end: String = (0..5).filter_map(|_| fastrand::choice(&alphabet)).collect();
    let prefix: String = prefix.chars().take(58).collect();
    format!("{prefix}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_38_generated_names() {
        let name = generate("web-");
        assert!(name.starts_with("web-") && name.len() == 9, "{name}");
        assert_eq!(generate(&"a".repeat(80)).len(), 63);
    }
}
