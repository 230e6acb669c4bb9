//! Access control: identifies the client of a request, and refuses what its role may not do.

use hyper::header;
use hyper::http::request::Parts;

use super::failure::Failure;
use super::server::Server;
use super::target::{Target, Verb};
use crate::identity::Identity;

/// Returns the client: the identity that the listener or this process attached, else the owner of the token.
pub(crate) fn identity(server: &Server, parts: &Parts) -> Result<Identity, Failure> {
    if let Some(identity) = parts.extensions.get::<Identity>() {
        return Ok(identity.clone());
    }
    let header = parts.headers.get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
    let token = header.and_then(|it| it.strip_prefix("Bearer "));
    token
        .and_then(|it| server.tokens.identity(it.trim()))
        .ok_or_else(|| Failure::new(401, "Unauthorized", "Unauthorized"))
}

/// Refuses what the role does not allow.
pub(crate) fn check(identity: &Identity, target: &Target) -> Result<(), Failure> {
    let (kind, verb) = (target.kind, target.verb);
    let resource = if verb == Verb::Review { "selfsubjectaccessreviews" } else { kind.resource };
    let sub = if target.is_status { "status" } else { "" };
    if identity.may(verb.word(), resource, sub, target.name()) {
        return Ok(());
    }
    let whole = if sub.is_empty() { resource.to_owned() } else { format!("{resource}/{sub}") };
    let place = target
        .namespace
        .as_ref()
        .map_or_else(|| "at the cluster scope".to_owned(), |it| format!("in the namespace {it:?}"));
    let why = format!(
        "User {:?} cannot {} resource {whole:?} in API group {:?} {place}",
        identity.user(),
        verb.word(),
        kind.group
    );
    Err(Failure::forbidden(kind, target.name(), &why))
}
