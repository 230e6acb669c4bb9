//! `SelfSubjectAccessReview`: reports to a client whether it may make a request.

use hyper::http::request::Parts;
use serde_json::{Value, json};

use super::answer::Answer;
use super::body;
use super::failure::Failure;
use super::form::Form;
use crate::identity::Identity;

pub(crate) fn review(identity: &Identity, parts: &Parts, bytes: &[u8]) -> Result<Answer, Failure> {
    let form = Form::of(parts)?;
    let asked = body::plain(parts, bytes, "authorization.SelfSubjectAccessReview")?;
    let spec = asked.get("spec").cloned().unwrap_or_default();
    let text = |name: &str| {
        let value = spec.pointer(&format!("/resourceAttributes/{name}")).and_then(Value::as_str);
        value.unwrap_or_default()
    };
    // A review concerns either a resource or a path; only one of them has a verb.
    let verb = match text("verb") {
        "" => {
            spec.pointer("/nonResourceAttributes/verb").and_then(Value::as_str).unwrap_or_default()
        }
        verb => verb,
    };
    let allowed = identity.may(verb, text("resource"), text("subresource"), text("name"));
    let answer = json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "metadata": {}, "spec": spec, "status": {"allowed": allowed},
    });
    Ok(Answer::value(201, &answer, form))
}
