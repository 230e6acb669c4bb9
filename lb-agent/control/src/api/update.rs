//! Replacement: a whole object in place of another.

use hyper::body::Bytes;
use hyper::http::request::Parts;
use serde_json::Value;

use super::answer::Answer;
use super::failure::Failure;
use super::metadata::{set, text};
use super::server::Server;
use super::target::Target;
use super::write::{Made, Wish, Write};
use super::{body, bootstrap, create, delete, list, rules};
use crate::kind::Kind;
use crate::store::{Object, Transaction};

/// Answers with the object after the update.
pub(crate) async fn update(
    server: &Server,
    parts: &Parts,
    target: Target,
    bytes: Bytes,
) -> Result<Answer, Failure> {
    let Write { form, query, validation, wish } =
        Write::of(server, parts, &target, "UpdateOptions")?;
    let sent = body::object(parts, &bytes, target.kind, validation)?;
    let value = rules::kept_form(target.kind, sent.value);
    let name = target.name().to_owned();
    let made = server.store.write(move |it| replace(it, &wish, &name, value)).await?;
    let made = made.map_err(|it| it.warned(&sent.warnings))?;
    let warnings = sent.warnings.into_iter().chain(made.warnings).collect();
    let code = if made.is_new { 201 } else { 200 };
    Ok(list::one(code, &made.object, &target, form, &query).with_warnings(warnings))
}

fn replace(
    transaction: &mut Transaction<'_>,
    wish: &Wish,
    name: &str,
    mut value: Value,
) -> Result<Made, Failure> {
    let given = text(&value, "name").to_owned();
    if given.is_empty() {
        return Err(Failure::bad_request("name must be provided"));
    }
    if given != name {
        let message =
            format!("the name of the object ({given}) does not match the name on the URL ({name})");
        return Err(Failure::bad_request(message));
    }
    create::place(&mut value, wish)?;
    match transaction.get(&wish.key(name)) {
        Some(old) => change(transaction, wish, &old, value),
        // Upstream creates a few kinds by PUT. A client that names a version or a uid expects an existing object.
        None if wish.kind.is_created_by_put && !wish.is_status => {
            if !text(&value, "resourceVersion").is_empty() || !text(&value, "uid").is_empty() {
                let kind = wish.kind;
                if text(&value, "uid").is_empty() {
                    set(&mut value, "resourceVersion", Value::Null);
                } else {
                    let why = format!(
                        "Precondition failed: UID in precondition: {}, UID in object meta: ",
                        text(&value, "uid")
                    );
                    return Err(Failure::conflict(kind, name, &why));
                }
            }
            create::make(transaction, wish, value)
        }
        None => Err(Failure::not_found(wish.kind, name)),
    }
}

/// Applies an update of the stored object `old` to `value`, by the rules of its kind.
pub(crate) fn change(
    transaction: &mut Transaction<'_>,
    wish: &Wish,
    old: &Object,
    mut value: Value,
) -> Result<Made, Failure> {
    let (kind, name) = (wish.kind, old.key.name.as_str());
    let before = old.value();
    preconditions(kind, name, &value, &before)?;
    set(&mut value, "resourceVersion", old.revision.to_string().into());
    set(&mut value, "uid", before.pointer("/metadata/uid").cloned().unwrap_or_default());
    let kept =
        ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"];
    for field in kept {
        let was = before.pointer(&format!("/metadata/{field}")).cloned();
        set(&mut value, field, was.unwrap_or_default());
    }
    for field in ["selfLink", "managedFields"] {
        set(&mut value, field, Value::Null);
    }
    let mut ruled = rules::update(transaction, wish, value, &before)?;
    rules::generation(kind, &mut ruled.value, old);
    let unstored = Object::unstored(old.key.clone(), &ruled.value);
    let warnings = ruled.warnings.clone();
    // As upstream: an update that changes nothing gets no new revision, so watches stay silent.
    if unstored.json == old.json {
        let object = std::sync::Arc::new(unstored.at(old.revision));
        return Ok(Made { object, warnings, is_new: false });
    }
    // The update removed the last finalizer of an object whose deletion was requested before: it goes now. A namespace
    // also waits for its content.
    let is_over = !text(&ruled.value, "deletionTimestamp").is_empty()
        && !delete::has_finalizers(&ruled.value)
        && (kind.resource != "namespaces" || !delete::has_content(transaction, name));
    if is_over && !wish.is_dry {
        if let Some(decision) = &ruled.decision {
            transaction.book(decision);
            rules::addresses::keep(transaction, decision);
        }
        delete::remove(transaction, &old.key, Some(ruled.value));
        let object = std::sync::Arc::new(unstored.at(transaction.revision()));
        bootstrap::restore(transaction, wish, &old.key);
        return Ok(Made { object, warnings, is_new: false });
    }
    let object = create::keep(transaction, wish, old.key.clone(), ruled);
    Ok(Made { object, warnings, is_new: false })
}

fn preconditions(kind: &Kind, name: &str, value: &Value, before: &Value) -> Result<(), Failure> {
    let (asked, is) = (text(value, "uid"), text(before, "uid"));
    if !asked.is_empty() && asked != is {
        let why =
            format!("Precondition failed: UID in precondition: {asked}, UID in object meta: {is}");
        return Err(Failure::conflict(kind, name, &why));
    }
    let (asked, is) = (text(value, "resourceVersion"), text(before, "resourceVersion"));
    if !asked.is_empty() && asked.parse::<u64>().is_err() {
        let message = format!("strconv.ParseUint: parsing {asked:?}: invalid syntax");
        let cause = crate::field::Cause::invalid("metadata.resourceVersion", asked, &message);
        return Err(Failure::invalid(kind, name, &[cause]));
    }
    if asked.is_empty() && kind.resource == "leases" {
        let cause = crate::field::Cause::invalid(
            "metadata.resourceVersion",
            "",
            "must be specified for an update",
        );
        return Err(Failure::invalid(kind, name, &[cause]));
    }
    // An update without a version is unconditional, as upstream allows it for these kinds.
    if asked.is_empty() || asked == is || asked == "0" {
        Ok(())
    } else {
        Err(Failure::modified(kind, name))
    }
}
