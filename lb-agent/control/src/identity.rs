//! The roles of clients, and the requests that each may make.

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
