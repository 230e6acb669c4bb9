//! Deletion of a collection: all objects that match the selectors.

use std::sync::Arc;

use hyper::body::Bytes;
use hyper::http::request::Parts;
use serde_json::Value;

use super::answer::Answer;
use super::delete::{Options, end};
use super::failure::Failure;
use super::form::Form;
use super::query::Query;
use super::select::Selector;
use super::server::Server;
use super::target::Target;
use super::write::Wish;
use super::{bootstrap, table};
use crate::store::Object;

/// Answers with the list of deleted objects.
pub(crate) async fn delete(
    server: &Server,
    parts: &Parts,
    target: Target,
    bytes: Bytes,
) -> Result<Answer, Failure> {
    let (form, query) = (Form::of(parts)?, Query::of(parts));
    let selector = Selector::of(&query, target.kind)?;
    let options = Options::of(parts, &bytes)?;
    let wish = Wish::new(server, &target, options.is_dry);
    // There is one transaction, so that no object that matches can be created between the list and the deletions.
    let ended = server.store.write(move |transaction| {
        let all = transaction.list(wish.kind.resource, Some(&wish.namespace));
        let matching = all.iter().filter(|it| selector.matches(it));
        let ended: Vec<Arc<Object>> =
            matching.map(|it| end(transaction, wish.kind, it, wish.is_dry).0).collect();
        for object in &ended {
            bootstrap::restore(transaction, &wish, &object.key);
        }
        Ok::<_, Failure>(ended)
    });
    let ended = ended.await??;
    let values: Vec<Value> = ended.iter().map(|it| table::view(it, target.kind)).collect();
    let mut list = table::list(target.kind, values);
    if let Some(fields) = list.as_object_mut() {
        let revision = server.store.revision().to_string();
        drop(fields.insert("metadata".into(), serde_json::json!({"resourceVersion": revision})));
    }
    Ok(Answer::value(200, &list, form))
}
