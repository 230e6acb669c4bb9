//! Access control: three fixed roles, and the requests that each may make.

use hyper::header;
use hyper::http::request::Parts;

use super::Server;
use super::failure::Failure;
use super::target::{Target, Verb};

/// The client, by its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// May do everything, as `cluster-admin` may.
    Admin,
    /// The agent of a node: reads, writes Events, the Lease and the status of its own Node, and the status of Pods.
    Node(String),
    /// May get, list and watch every kind.
    Reader,
}

impl Identity {
    pub(crate) fn word(&self) -> String {
        match self {
            Self::Admin => "admin".into(),
            Self::Node(name) => format!("node-{name}"),
            Self::Reader => "reader".into(),
        }
    }

    pub(crate) fn of_word(word: &str) -> Option<Self> {
        match word {
            "admin" => Some(Self::Admin),
            "reader" => Some(Self::Reader),
            word => word.strip_prefix("node-").map(|it| Self::Node(it.into())),
        }
    }

    /// Returns the name that error texts use.
    pub(crate) fn user(&self) -> String {
        match self {
            Self::Admin => "admin".into(),
            Self::Node(name) => format!("system:node:{name}"),
            Self::Reader => "reader".into(),
        }
    }

    /// Reports whether the role may apply `verb` to a resource or subresource. `name` is empty for a collection.
    pub(crate) fn may(&self, verb: &str, resource: &str, sub: &str, name: &str) -> bool {
        // All roles may read everything. A node may write events, leases, and the status of itself and of pods.
        let reads = matches!(verb, "get" | "list" | "watch");
        let asks = resource == "selfsubjectaccessreviews" && verb == "create";
        match self {
            Self::Admin => true,
            _ if reads || asks => true,
            Self::Reader => false,
            Self::Node(own) => match (resource, sub) {
                ("events", "") => matches!(verb, "create" | "update" | "patch"),
                ("leases", "") => {
                    verb == "create" || (name == own && matches!(verb, "update" | "patch"))
                }
                ("nodes", "status") => name == own && matches!(verb, "update" | "patch"),
                ("pods", "status") => matches!(verb, "update" | "patch"),
                _ => false,
            },
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_its_permissions() {
        let node = Identity::Node("a".into());
        let cases = [
            (&node, "list", ("services", ""), "", true),
            (&node, "create", ("services", ""), "", false),
            (&node, "create", ("events", ""), "", true),
            (&node, "update", ("leases", ""), "a", true),
            (&node, "update", ("leases", ""), "b", false),
            (&node, "patch", ("nodes", "status"), "a", true),
            (&node, "patch", ("nodes", "status"), "b", false),
            (&node, "patch", ("nodes", ""), "a", false),
            (&Identity::Reader, "watch", ("pods", ""), "", true),
            (&Identity::Reader, "delete", ("pods", ""), "x", false),
            (&Identity::Admin, "delete", ("pods", ""), "x", true),
        ];
        for (identity, verb, (resource, sub), name, expected) in cases {
            assert_eq!(
                identity.may(verb, resource, sub, name),
                expected,
                "{identity:?} {verb} {resource}/{sub}"
            );
        }
    }
}
