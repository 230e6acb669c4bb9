//! The target of a request, by its method and path.

use hyper::Method;
use hyper::http::request::Parts;

use super::failure::Failure;
use super::query::Query;
use crate::kind::Kind;

/// The operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// A `SelfSubjectAccessReview`, which is evaluated and not stored.
    Review,
}

impl Verb {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create | Self::Review => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// A resource, or one object of it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) verb: Verb,
    pub(crate) kind: &'static Kind,
    /// `None` for all namespaces, and for resources without namespaces.
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) is_status: bool,
}

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

impl Target {
    pub(crate) fn of(parts: &Parts) -> Result<Self, Failure> {
        let path = parts.uri.path();
        if path == REVIEWS {
            let is_post = parts.method == Method::POST;
            let kind = Kind::find("", "services").ok_or_else(Failure::no_path)?;
            let asked =
                Self { verb: Verb::Review, kind, namespace: None, name: None, is_status: false };
            return if is_post { Ok(asked) } else { Err(Failure::method_not_allowed()) };
        }
        let words: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, rest) = match words.as_slice() {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, "v1", rest @ ..] => (*group, rest),
            _ => return Err(Failure::no_path()),
        };
        let (namespace, rest) = match rest {
            // These paths are about the namespace object itself, not about objects in it.
            ["namespaces"] | ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => {
                (None, rest)
            }
            ["namespaces", namespace, rest @ ..] => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let (resource, name, sub) = match rest {
            [resource] => (*resource, None, None),
            [resource, name] => (*resource, Some((*name).to_owned()), None),
            [resource, name, sub] => (*resource, Some((*name).to_owned()), Some(*sub)),
            _ => return Err(Failure::no_path()),
        };
        let kind = Kind::find(group, resource).ok_or_else(Failure::no_path)?;
        let is_status = sub == Some("status") && kind.has_status;
        let is_in_place = kind.is_namespaced || namespace.is_none();
        let needs_namespace = kind.is_namespaced && name.is_some() && namespace.is_none();
        if !is_in_place || needs_namespace || (sub.is_some() && !is_status) {
            return Err(Failure::no_path());
        }
        let verb = verb(&parts.method, name.is_some(), is_status, &Query::of(parts))?;
        let needs_namespace = kind.is_namespaced && namespace.is_none();
        let needs_one = matches!(verb, Verb::Create | Verb::DeleteCollection);
        let is_refused = verb == Verb::DeleteCollection && !kind.has_collection_delete();
        if (needs_namespace && needs_one)
            || is_refused
            || (!kind.is_writable && !matches!(verb, Verb::Get | Verb::List | Verb::Watch))
        {
            return Err(Failure::method_not_allowed());
        }
        Ok(Self { verb, kind, namespace, name, is_status })
    }

    /// Returns the name in the path, empty for a collection.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Returns the namespace in the path, empty where there is none.
    pub(crate) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }
}

fn verb(method: &Method, has_name: bool, is_status: bool, query: &Query) -> Result<Verb, Failure> {
    let is_watch = query.flag("watch");
    Ok(match (method.as_str(), has_name) {
        ("GET" | "HEAD", true) => Verb::Get,
        ("GET" | "HEAD", false) if is_watch => Verb::Watch,
        ("GET" | "HEAD", false) => Verb::List,
        ("POST", false) => Verb::Create,
        ("PUT", true) => Verb::Update,
        ("PATCH", true) => Verb::Patch,
        // A status cannot be deleted.
        ("DELETE", true) if !is_status => Verb::Delete,
        ("DELETE", false) => Verb::DeleteCollection,
        _ => return Err(Failure::method_not_allowed()),
    })
}
