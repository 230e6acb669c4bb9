//! The API as clients see it: paths, bodies and answers. It reads the sender, the operation and the form of a request;
//! the rules that decide about objects are in `service` and `rules`.

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use http_body_util::{BodyExt as _, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::http::request::Parts;

mod access;
mod answer;
mod body;
mod bootstrap;
mod collect;
mod create;
mod delete;
mod discovery;
mod failure;
mod form;
mod list;
mod metadata;
mod openapi;
mod patch;
mod query;
mod review;
mod rules;
mod select;
mod server;
mod strategic;
mod table;
mod target;
mod update;
mod watch;
mod write;

pub use bootstrap::bootstrap;
pub use failure::Failure;
pub use server::Server;

use answer::Answer;
use target::{Target, Verb};

/// Largest body of a request, in bytes.
const BODY: usize = 3 << 20;

/// Returns the API as a service for requests, either of a listener or of a client in this process.
///
/// The client is the [`Identity`](crate::identity::Identity) among the extensions of a request, else the owner of its
/// bearer token.
pub fn router(server: Server) -> Router {
    Router::new().fallback(handle).with_state(server)
}

async fn handle(State(server): State<Server>, request: Request<Body>) -> Answer {
    let (parts, body) = request.into_parts();
    match respond(&server, &parts, body).await {
        Ok(answer) => answer,
        Err(failure) => Answer::failure(&failure, &parts),
    }
}

async fn respond(server: &Server, parts: &Parts, body: Body) -> Result<Answer, Failure> {
    let identity = access::identity(server, parts);
    // Version and health need no credentials, as upstream's `system:public-info-viewer` allows. So a refusal of the
    // identity is returned only after this.
    if let Some(answer) = discovery::open(parts) {
        return Ok(answer);
    }
    let identity = identity?;
    if let Some(answer) = discovery::discover(parts)? {
        return Ok(answer);
    }
    let target = Target::of(parts)?;
    access::check(&identity, &target)?;
    if target.verb == Verb::Review {
        return review::review(&identity, parts, &whole(body).await?);
    }
    match target.verb {
        Verb::Get => list::get(server, parts, &target),
        Verb::List => list::list(server, parts, &target),
        Verb::Watch => watch::watch(server, parts, &target),
        Verb::Create => create::create(server, parts, target, whole(body).await?).await,
        Verb::Update => update::update(server, parts, target, whole(body).await?).await,
        Verb::Patch => patch::patch(server, parts, target, whole(body).await?).await,
        Verb::Delete => delete::delete(server, parts, target, whole(body).await?).await,
        Verb::DeleteCollection => collect::delete(server, parts, target, whole(body).await?).await,
        // Reviews are handled above, before any other permission is needed.
        Verb::Review => Err(Failure::no_path()),
    }
}

async fn whole(body: Body) -> Result<Bytes, Failure> {
    // The body is limited while it is read: a client must not fill the memory with one request.
    let limited = Limited::new(body, BODY).collect().await;
    limited.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            Failure::new(
                413,
                "RequestEntityTooLarge",
                format!("Request entity too large: limit is {BODY}"),
            )
        } else {
            Failure::bad_request(error.to_string())
        }
    })
}

#[cfg(test)]
mod tests;
