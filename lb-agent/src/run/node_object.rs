//! The problem of a node without Node object, or with one that names no address.

use tracing::warn;

/// The problem as last reported.
#[derive(Debug, Default)]
pub(super) struct NodeObject {
    problem: Option<String>,
}

impl NodeObject {
    /// Returns the problem for operators, and logs a new one. `awaits_primary`: no address serves `NodePorts` until a
    /// primary address is known.
    pub(super) fn problem(
        &mut self,
        name: &str,
        is_known: bool,
        awaits_primary: bool,
    ) -> Option<String> {
        let problem = problem(name, is_known, awaits_primary);
        if let Some(problem) = problem.as_ref().filter(|it| self.problem.as_ref() != Some(it)) {
            warn!(problem, "Node object of this node is missing or names no address");
        }
        self.problem.clone_from(&problem);
        problem
    }
}

fn problem(name: &str, is_known: bool, awaits_primary: bool) -> Option<String> {
    let what = match (is_known, awaits_primary) {
        (true, false) => return None,
        (true, true) => "names no address",
        (false, _) => "does not exist",
    };
    let effect = if awaits_primary {
        "only addresses that --nodeport-addresses names serve NodePorts until it names one"
    } else {
        "its last known zone and addresses stay in use"
    };
    let remedy =
        if is_known { "" } else { "; if the node has another name, set --hostname-override" };
    Some(format!("Node \"{name}\" {what}; {effect}{remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_names_the_object_and_its_effect() {
        let mut object = NodeObject::default();
        assert_eq!(object.problem("a", true, false), None);
        let missing = object.problem("a", false, false).unwrap();
        assert!(missing.starts_with("Node \"a\" does not exist; its last known"), "{missing}");
        let unserved = object.problem("a", false, true).unwrap();
        assert!(unserved.contains("does not exist; only addresses that"), "{unserved}");
        assert!(unserved.ends_with("set --hostname-override"), "{unserved}");
        let unnamed = object.problem("a", true, true).unwrap();
        assert!(unnamed.starts_with("Node \"a\" names no address; only"), "{unnamed}");
    }
}
