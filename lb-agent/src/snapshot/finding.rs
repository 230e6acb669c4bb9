//! A problem of one object: reported with a remedy, without stopping anything else.

use std::borrow::Cow;
use std::fmt;

/// The object of a [`Finding`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// `Service`, `EndpointSlice`, `Node` or `ServiceCIDR`.
    pub kind: &'static str,
    /// The namespace; empty for kinds without one.
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.namespace.is_empty() { "" } else { "/" };
        write!(f, "{} {}{separator}{}", self.kind, self.namespace, self.name)
    }
}

/// A field of an object that cannot be used as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Finding {
    pub object: ObjectName,
    /// The field as `kubectl explain` names it, with the index of a list entry.
    pub field: String,
    /// The problem and its consequence.
    pub problem: String,
    pub remedy: Cow<'static, str>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}; {}", self.object, self.field, self.problem, self.remedy)
    }
}

/// Collects a bounded number of findings of one object.
#[derive(Debug)]
pub struct Findings {
    object: ObjectName,
    list: Vec<Finding>,
}

impl Findings {
    /// The number of findings kept per object. All others are counted as one.
    pub const MOST: usize = 8;

    /// Makes an empty collection for this object.
    pub fn of(kind: &'static str, namespace: &str, name: &str) -> Self {
        let object = ObjectName { kind, namespace: namespace.to_owned(), name: name.to_owned() };
        Self { object, list: Vec::new() }
    }

    /// Adds a finding, up to [`Self::MOST`], and then one that reports that there are more.
    pub fn wrong(
        &mut self,
        field: impl fmt::Display,
        problem: impl fmt::Display,
        remedy: &'static str,
    ) {
        let object = self.object.clone();
        let (field, problem, remedy) = match self.list.len() {
            0..Self::MOST => (field.to_string(), problem.to_string(), remedy),
            Self::MOST => {
                // An object with thousands of wrong fields must not fill the status and the memory.
                ("...".to_owned(), "has more problems".to_owned(), "correct the first ones")
            }
            _ => return,
        };
        self.list.push(Finding { object, field, problem, remedy: Cow::Borrowed(remedy) });
    }

    pub fn into_list(self) -> Vec<Finding> {
        self.list
    }
}

/// Returns a value fit to be shown: in quotes, with control characters escaped, shortened.
pub(crate) fn quoted(value: &str) -> String {
    const MOST: usize = 64;
    let mut shown = String::from('"');
    shown.extend(value.chars().take(MOST).flat_map(char::escape_debug));
    if value.chars().nth(MOST).is_some() {
        shown.push_str("...");
    }
    shown.push('"');
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_readable_line() {
        let mut findings = Findings::of("Service", "default", "web");
        findings.wrong("spec.ports[0].port", "70000 is not a port", "write 1 to 65535");
        assert_eq!(
            findings.into_list()[0].to_string(),
            "Service default/web: spec.ports[0].port: 70000 is not a port; write 1 to 65535"
        );
    }

    #[test]
    fn findings_of_one_object_are_bounded() {
        let mut findings = Findings::of("Service", "default", "web");
        for at in 0..1000 {
            findings.wrong(format_args!("spec.externalIPs[{at}]"), "is no address", "remove it");
        }
        let list = findings.into_list();
        assert_eq!(list.len(), Findings::MOST + 1);
        assert_eq!(list[Findings::MOST].field, "...");
    }

    #[test]
    fn values_are_shown_without_control_characters_and_cut() {
        assert_eq!(quoted("a\u{1b}[2Jb\n"), "\"a\\u{1b}[2Jb\\n\"");
        assert_eq!(quoted(&"x".repeat(65)), format!("\"{}...\"", "x".repeat(64)));
    }
}
