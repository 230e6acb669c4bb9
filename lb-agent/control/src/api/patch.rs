//! Changes of parts of an object, in three notations: JSON patch, JSON merge patch, strategic merge patch.

use hyper::body::Bytes;
use hyper::http::request::Parts;
use json_patch::PatchOperation;
use serde_json::Value;

use super::answer::Answer;
use super::failure::Failure;
use super::metadata::text;
use super::query::Validation;
use super::server::Server;
use super::target::Target;
use super::write::{Made, Wish, Write};
use super::{body, list, rules, strategic, table, update};
use crate::schema::{self, Parsed};
use crate::store::Transaction;

/// A patch as it was sent.
enum Patch {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Value),
}

const KNOWN: &str = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";

/// Largest number of operations in one JSON patch; upstream has the same limit.
const OPERATIONS: usize = 10_000;

/// Largest sum of the sizes of copied values in one JSON patch, in bytes of JSON; upstream has the same limit.
const COPIES: usize = 3 << 20;

/// Largest number of lists and objects within one another: `serde_json` reads no more.
const DEPTH: usize = 127;

impl Patch {
    fn of(parts: &Parts, bytes: &[u8]) -> Result<(Self, Vec<String>), Failure> {
        let media = body::media(parts);
        let parse = || {
            schema::json(bytes)
                .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))
        };
        Ok(match media {
            "application/json-patch+json" => {
                let patch = parse()?;
                let patch: json_patch::Patch =
                    serde_json::from_value(patch.value).map_err(|error| {
                        Failure::bad_request(format!("error decoding patch: {error}"))
                    })?;
                if patch.0.len() > OPERATIONS {
                    let message = format!(
                        "The allowed maximum operations in a JSON patch is {OPERATIONS}, got {}",
                        patch.0.len()
                    );
                    return Err(Failure::new(413, "RequestEntityTooLarge", message));
                }
                (Self::Json(patch), Vec::new())
            }
            "application/merge-patch+json" => {
                let Parsed { value, duplicates } = parse()?;
                (Self::Merge(object(value)?), duplicates)
            }
            "application/strategic-merge-patch+json" => {
                let Parsed { value, duplicates } = parse()?;
                (Self::Strategic(object(value)?), duplicates)
            }
            "application/apply-patch+yaml" => {
                let message = format!(
                    "{KNOWN}; server-side apply is not served, apply without --server-side"
                );
                return Err(Failure::new(415, "UnsupportedMediaType", message));
            }
            _ => return Err(Failure::new(415, "UnsupportedMediaType", KNOWN)),
        })
    }

    fn apply(&self, mut value: Value, type_name: &str) -> Result<Value, Failure> {
        match self {
            Self::Json(patch) => operate(&mut value, patch)?,
            Self::Merge(patch) => json_patch::merge(&mut value, patch),
            Self::Strategic(patch) => {
                value = strategic::merge(value, patch, type_name).map_err(Failure::bad_request)?;
            }
        }
        Ok(value)
    }
}

/// Applies a JSON patch, operation by operation, since the size of a copied value depends on those before it.
fn operate(value: &mut Value, patch: &json_patch::Patch) -> Result<(), Failure> {
    let failed = |error: &str| {
        let message =
            format!("the server rejected our request due to an error in our request: {error}");
        Failure::new(422, "Invalid", message)
    };
    let mut copied = 0;
    for (index, operation) in patch.0.iter().enumerate() {
        // Before a look at the whole value, which thousands of moves could demand.
        let from = match operation {
            PatchOperation::Copy(it) => Some(&it.from),
            PatchOperation::Move(it) if is_down(it.from.as_str(), it.path.as_str()) => {
                Some(&it.from)
            }
            PatchOperation::Move(_)
            | PatchOperation::Add(_)
            | PatchOperation::Replace(_)
            | PatchOperation::Remove(_)
            | PatchOperation::Test(_) => None,
        };
        if let Some(from) = from {
            // Thirty copies of an object into itself would double it each time.
            copied += value.pointer(from.as_str()).map_or(0, |it| it.to_string().len());
            if copied > COPIES {
                return Err(failed(&format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {COPIES}"
                )));
            }
        }
        if reach(value, operation) > DEPTH {
            return Err(failed(&format!("operation '/{index}' nests more than {DEPTH} values")));
        }
        json_patch::patch(value, std::slice::from_ref(operation)).map_err(|mut error| {
            error.operation = index;
            failed(&error.to_string())
        })?;
    }
    Ok(())
}

fn levels(path: &str) -> usize {
    path.matches('/').count()
}

/// Reports whether a value that is moved lies deeper afterwards.
fn is_down(from: &str, path: &str) -> bool {
    levels(path) > levels(from)
}

/// Returns how deep an operation nests values; 0 if no deeper than they are.
fn reach(value: &Value, operation: &PatchOperation) -> usize {
    let moved = |from: &str, path: &str| levels(path) + value.pointer(from).map_or(0, depth);
    match operation {
        PatchOperation::Add(it) => levels(it.path.as_str()) + depth(&it.value),
        PatchOperation::Replace(it) => levels(it.path.as_str()) + depth(&it.value),
        PatchOperation::Copy(it) => moved(it.from.as_str(), it.path.as_str()),
        // A move to the same level or up needs no look at the value, which can be large.
        PatchOperation::Move(it) if is_down(it.from.as_str(), it.path.as_str()) => {
            moved(it.from.as_str(), it.path.as_str())
        }
        PatchOperation::Move(_) | PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
    }
}

/// Returns the number of lists and objects within one another.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(all) => 1 + all.iter().map(depth).max().unwrap_or(0),
        Value::Object(all) => 1 + all.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn object(value: Value) -> Result<Value, Failure> {
    if value.is_object() {
        return Ok(value);
    }
    Err(Failure::bad_request(
        "error decoding patch: json: cannot unmarshal it into Go value of type map[string]interface {}",
    ))
}

/// Answers with the object after the patch.
pub(crate) async fn patch(
    server: &Server,
    parts: &Parts,
    target: Target,
    bytes: Bytes,
) -> Result<Answer, Failure> {
    let Write { form, query, validation, wish } =
        Write::of(server, parts, &target, "PatchOptions")?;
    let (patch, duplicates) = Patch::of(parts, &bytes)?;
    let name = target.name().to_owned();
    // The patch is applied inside the transaction, to the object as it is then. No other write can come in between.
    let work =
        move |it: &mut Transaction<'_>| one(it, &wish, &name, &patch, duplicates, validation);
    let (made, warnings) = server.store.write(work).await??;
    let warnings = warnings.into_iter().chain(made.warnings).collect();
    Ok(list::one(200, &made.object, &target, form, &query).with_warnings(warnings))
}

fn one(
    transaction: &mut Transaction<'_>,
    wish: &Wish,
    name: &str,
    patch: &Patch,
    duplicates: Vec<String>,
    validation: Validation,
) -> Result<(Made, Vec<String>), Failure> {
    let kind = wish.kind;
    let old = transaction.get(&wish.key(name)).ok_or_else(|| Failure::not_found(kind, name))?;
    let value = patch.apply(table::view(&old, kind), kind.type_name)?;
    let sent = body::known(&Parsed { value, duplicates }, kind, validation)?;
    // The form is converted after the patch, because the patch applies to the form that the client reads.
    let value = rules::kept_form(kind, sent.value);
    let given = text(&value, "name");
    if given != name || text(&value, "namespace") != wish.namespace {
        let field = if given == name { "namespace" } else { "name" };
        let cause = crate::field::Cause::invalid(
            format!("metadata.{field}"),
            text(&value, field),
            "field is immutable",
        );
        return Err(Failure::invalid(kind, name, &[cause]));
    }
    let made =
        update::change(transaction, wish, &old, value).map_err(|it| it.warned(&sent.warnings))?;
    Ok((made, sent.warnings))
}
