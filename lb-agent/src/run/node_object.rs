//! The problem of a node without Node object, or with one that cannot be read or names no address.

use tracing::warn;

use crate::node::Identity;

/// The problem as last reported.
#[derive(Debug, Default)]
pub(super) struct NodeObject {
    problem: Option<String>,
}

impl NodeObject {
    /// Returns the problem for operators, and logs a new one.
    ///
    /// `unread`: why no list of Nodes was read yet. `identity`: the facts that are known, also from an earlier run or
    /// state of the object. `has_zone`: the zone is known from an earlier state of the object; no run leaves it to the
    /// next one.
    pub(super) fn problem(
        &mut self,
        name: &str,
        is_known: bool,
        unread: Option<&str>,
        identity: &Identity,
        has_zone: bool,
    ) -> Option<String> {
        let problem = problem(name, is_known, unread, identity, has_zone);
        if let Some(problem) = problem.as_ref().filter(|it| self.problem.as_ref() != Some(it)) {
            warn!(
                problem,
                "Node object of this node is missing, cannot be read or names no address"
            );
        }
        self.problem.clone_from(&problem);
        problem
    }
}

fn problem(
    name: &str,
    is_known: bool,
    unread: Option<&str>,
    identity: &Identity,
    has_zone: bool,
) -> Option<String> {
    let awaits_primary = identity.awaits_primary();
    let what = match (is_known, awaits_primary, unread) {
        (true, false, _) => return None,
        (true, true, _) => "names no address".to_owned(),
        (false, _, None) => "does not exist".to_owned(),
        // The reason names the missing right.
        (false, _, Some(reason)) => format!("cannot be read: {reason}"),
    };
    let effect = match (awaits_primary, identity.knows_primary, has_zone) {
        (true, _, _) => {
            "only addresses that the configuration names serve NodePorts until it names one"
        }
        (false, true, true) => "its last known zone and addresses stay in use",
        (false, true, false) => "its last known addresses stay in use, and its zone is not known",
        (false, false, true) => "its last known zone stays in use, and its addresses are not known",
        (false, false, false) => "its zone and addresses are not known",
    };
    let may_be_misnamed = !is_known && unread.is_none();
    let remedy = if may_be_misnamed {
        "; if the node has another name, set --hostname-override"
    } else {
        ""
    };
    Some(format!("Node \"{name}\" {what}; {effect}{remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_names_the_object_and_its_effect() {
        let mut object = NodeObject::default();
        let mut identity = Identity { knows_primary: true, ..Identity::default() };
        assert_eq!(object.problem("a", true, None, &identity, true), None);
        let missing = object.problem("a", false, None, &identity, true).unwrap();
        let stay = "Node \"a\" does not exist; its last known zone and addresses stay in use; if";
        assert!(missing.starts_with(stay), "{missing}");
        // An earlier run has left the addresses in the maps.
        let restarted = object.problem("a", false, None, &identity, false).unwrap();
        let stay = "; its last known addresses stay in use, and its zone is not known; if";
        assert!(restarted.contains(stay), "{restarted}");
        identity.knows_primary = false;
        let unserved = object.problem("a", false, None, &identity, false).unwrap();
        assert!(unserved.contains("does not exist; only addresses that"), "{unserved}");
        assert!(unserved.ends_with("set --hostname-override"), "{unserved}");
        let unnamed = object.problem("a", true, None, &identity, false).unwrap();
        assert!(unnamed.starts_with("Node \"a\" names no address; only"), "{unnamed}");
        identity.node_ports.all = true;
        assert_eq!(object.problem("a", true, None, &identity, false), None);
        let missing = object.problem("a", false, None, &identity, false).unwrap();
        assert!(missing.contains("its zone and addresses are not known; if"), "{missing}");
        let missing = object.problem("a", false, None, &identity, true).unwrap();
        assert!(missing.contains("zone stays in use, and its addresses are not"), "{missing}");
        let reason = Some("forbidden (403); grant get, list and watch on nodes");
        let unread = object.problem("a", false, reason, &identity, false).unwrap();
        assert!(unread.starts_with("Node \"a\" cannot be read: forbidden (403); "), "{unread}");
        assert!(unread.ends_with("addresses are not known"), "{unread}");
    }
}
