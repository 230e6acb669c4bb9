//! Reading: one object, or a list with pages and revisions.

use std::sync::Arc;

use hyper::http::request::Parts;
use serde_json::Value;

use super::answer::Answer;
use super::failure::Failure;
use super::form::{Form, Shape};
use super::query::Query;
use super::select::Selector;
use super::server::Server;
use super::table;
use super::target::Target;
use crate::field::Cause;
use crate::store::{Key, Object};

/// Answers with one object.
pub(crate) fn get(server: &Server, parts: &Parts, target: &Target) -> Result<Answer, Failure> {
    let form = Form::of(parts)?;
    let key = Key::new(target.kind.resource, target.namespace(), target.name());
    let object = server.store.get(&key);
    let object = object.ok_or_else(|| Failure::not_found(target.kind, target.name()))?;
    Ok(one(200, &object, target, form, &Query::of(parts)))
}

/// Makes the answer for one object in the form that the client accepts.
pub(crate) fn one(
    code: u16,
    object: &Object,
    target: &Target,
    form: Form,
    query: &Query,
) -> Answer {
    // The stored bytes are the answer: the most frequent form needs neither parsing nor writing.
    if form.shape == Shape::Whole && !form.is_yaml && !table::is_translated(target.kind) {
        return Answer::json(code, object.json.clone());
    }
    let value = table::view(object, target.kind);
    let value = match form.shape {
        Shape::Whole => value,
        Shape::Metadata => table::metadata(&value),
        Shape::Table => {
            let revision = object.revision.to_string();
            table::table(target.kind, &[value], &revision, query.get("includeObject"))
        }
    };
    Answer::value(code, &value, form)
}

/// Answers with all objects that match, or a page of them.
pub(crate) fn list(server: &Server, parts: &Parts, target: &Target) -> Result<Answer, Failure> {
    let form = Form::of(parts)?;
    let query = Query::of(parts);
    let selector = Selector::of(&query, target.kind)?;
    let page = Page::of(&query, server.store.revision())?;
    let namespace = target.namespace.as_deref();
    let (now, all) = server.store.list(target.kind.resource, namespace);
    let (revision, all) = match page.at {
        None => (now, all),
        Some(at) => {
            let then = server.store.list_at(target.kind.resource, namespace, at);
            let then = then.map_err(|_gone| page.expired(now))?;
            (at, then)
        }
    };
    let all = all.into_iter().filter(|it| page.is_after(it) && selector.matches(it));
    let mut all: Vec<Arc<Object>> = all.collect();
    let surplus = page.limit.map_or(0, |limit| all.len().saturating_sub(limit));
    all.truncate(all.len() - surplus);
    let next = all.last().filter(|_| surplus > 0).map(|it| token(revision, &it.key));
    // As upstream: `remainingItemCount` is omitted for lists with a selector.
    let rest = (selector.is_empty() && surplus > 0).then_some(surplus);
    Ok(render(&all, target, form, &query, revision, next, rest))
}

/// Makes the answer for a list in the form that the client accepts.
fn render(
    all: &[Arc<Object>],
    target: &Target,
    form: Form,
    query: &Query,
    revision: u64,
    next: Option<String>,
    rest: Option<usize>,
) -> Answer {
    let mut metadata = serde_json::Map::new();
    drop(metadata.insert("resourceVersion".into(), revision.to_string().into()));
    if let Some(next) = next {
        drop(metadata.insert("continue".into(), next.into()));
    }
    if let Some(rest) = rest {
        drop(metadata.insert("remainingItemCount".into(), rest.into()));
    }
    let kind = target.kind;
    let metadata = Value::Object(metadata);
    // The usual case: the stored JSON of each object is copied without being parsed.
    if form.shape == Shape::Whole && !form.is_yaml && !table::is_translated(kind) {
        return Answer::json(200, table::list_bytes(kind, all, &metadata));
    }
    let values: Vec<Value> = all.iter().map(|it| table::view(it, kind)).collect();
    let mut value = match form.shape {
        Shape::Whole => table::list(kind, values),
        Shape::Metadata => table::metadata_list(&values),
        Shape::Table => {
            table::table(kind, &values, &revision.to_string(), query.get("includeObject"))
        }
    };
    if let Some(fields) = value.as_object_mut() {
        drop(fields.insert("metadata".into(), metadata));
    }
    Answer::value(200, &value, form)
}

/// The part of a list that the client requests.
struct Page {
    limit: Option<usize>,
    /// The revision of the list; `None` for the newest.
    at: Option<u64>,
    after: Option<(String, String)>,
}

const WRONG: &str = "invalid for the list operation";

impl Page {
    fn of(query: &Query, now: u64) -> Result<Self, Failure> {
        let limit = query.number("limit").and_then(|it| usize::try_from(it).ok());
        let limit = limit.filter(|it| *it > 0);
        let version = query.get("resourceVersion");
        let matching = query.get("resourceVersionMatch");
        check(version, matching, query.get("continue").is_some())?;
        if let Some(token) = query.get("continue") {
            let wrong =
                || Failure::bad_request("continue key is not valid: this server did not issue it");
            let (at, namespace, name) = of_token(token).ok_or_else(wrong)?;
            return Ok(Self {
                limit,
                at: at.filter(|it| *it != now),
                after: Some((namespace, name)),
            });
        }
        let asked = version.map(parse).transpose()?.unwrap_or(0);
        if asked > now {
            return Err(Failure::too_large(asked, now));
        }
        let is_exact = matching == Some("Exact") && asked != now;
        // Upstream serves version 0 from its watch cache, which ignores the limit.
        let limit = limit.filter(|_| version != Some("0"));
        Ok(Self { limit, at: is_exact.then_some(asked), after: None })
    }

    fn is_after(&self, object: &Object) -> bool {
        let key = (&object.key.namespace, &object.key.name);
        self.after.as_ref().is_none_or(|(namespace, name)| key > (namespace, name))
    }

    fn expired(&self, now: u64) -> Failure {
        let Some((namespace, name)) = &self.after else {
            let at = self.at.unwrap_or(0);
            return Failure::expired(format!(
                "The resourceVersion for the provided list is too old: {at} ({now})."
            ));
        };
        // A token without a revision continues after the last key at the current state, as upstream offers it.
        let next = token_of("", namespace, name);
        let mut failure = Failure::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
        );
        drop(failure.details.insert("continue".into(), next.into()));
        failure
    }
}

fn check(version: Option<&str>, matching: Option<&str>, is_next: bool) -> Result<(), Failure> {
    let refuse =
        |cause: Cause| Err(Failure::invalid_of("meta.k8s.io", "ListOptions", "", &[cause]));
    let field = "resourceVersionMatch";
    match (version, matching) {
        (_, Some(_)) if is_next => {
            refuse(Cause::forbidden(field, "resourceVersionMatch is forbidden for a continue list"))
        }
        (None, Some(_)) => {
            let detail = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            refuse(Cause::forbidden(field, detail))
        }
        (Some("0"), Some("Exact")) => {
            let detail = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            refuse(Cause::forbidden(field, detail))
        }
        (_, None) | (Some(_), Some("Exact" | "NotOlderThan")) => Ok(()),
        (Some(_), Some(other)) => {
            let known = ["Exact", "NotOlderThan", ""];
            refuse(Cause::not_supported(field, other, &known))
        }
    }
}

/// Reads a resource version. The error is in upstream's words.
pub(crate) fn parse(text: &str) -> Result<u64, Failure> {
    let wrong = |_| {
        let cause = Cause::invalid("resourceVersion", text, WRONG);
        Failure::bad_request(format!("Invalid value: {text:?}: {}", cause.message))
    };
    text.parse().map_err(wrong)
}

fn token(revision: u64, key: &Key) -> String {
    token_of(&revision.to_string(), &key.namespace, &key.name)
}

/// Writes a continue token. It is hexadecimal, so that clients do not read or build it.
fn token_of(revision: &str, namespace: &str, name: &str) -> String {
    let text = format!("{revision}/{namespace}/{name}");
    crate::credentials::hex(text.as_bytes())
}

fn of_token(token: &str) -> Option<(Option<u64>, String, String)> {
    let digits = |it: &[u8]| u8::from_str_radix(std::str::from_utf8(it).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = token.as_bytes().chunks(2).map(digits).collect();
    let text = String::from_utf8(bytes?).ok()?;
    let mut parts = text.splitn(3, '/');
    let (revision, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    let revision = if revision.is_empty() { None } else { Some(revision.parse().ok()?) };
    Some((revision, namespace.into(), name.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_95_tokens_come_back() {
        let key = Key::new("services", "ns", "a");
        assert_eq!(of_token(&token(7, &key)), Some((Some(7), "ns".into(), "a".into())));
        assert_eq!(of_token(&token_of("", "ns", "a")), Some((None, "ns".into(), "a".into())));
        for wrong in ["", "zz", "61", "é"] {
            assert_eq!(of_token(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn statement_96_revisions_and_their_match() {
        assert!(check(None, Some("Exact"), false).is_err_and(|it| it.code == 422));
        assert!(check(Some("0"), Some("Exact"), false).is_err());
        assert!(check(Some("5"), Some("Foo"), false).is_err());
        assert!(check(Some("5"), Some("NotOlderThan"), false).is_ok());
    }
}
