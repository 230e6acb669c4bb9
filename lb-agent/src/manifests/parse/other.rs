//! Objects of unsupported kinds. Most are meant for another program; some are misspelt supported ones.

use std::path::Path;

use strsim::levenshtein;
use tracing::info;

use crate::snapshot::{Findings, quoted};

/// An object of an unsupported kind.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::manifests) struct Other {
    /// The line at which its document begins, from 1.
    pub(in crate::manifests) line: u64,
    /// As written; empty if missing.
    pub(in crate::manifests) api_version: String,
    /// As written; empty if missing.
    pub(in crate::manifests) kind: String,
}

/// The supported kinds: version and name.
const READ: [(&str, &str); 4] = [
    ("v1", "Service"),
    ("discovery.k8s.io/v1", "EndpointSlice"),
    ("v1", "Node"),
    ("networking.k8s.io/v1", "ServiceCIDR"),
];

impl Other {
    /// Reports the object. It is a problem of its file if a supported kind was probably meant.
    pub(in crate::manifests) fn report(&self, file: &Path, findings: &mut Findings) {
        let Self { line, api_version, kind } = self;
        let field = format_args!("line {line}, kind");
        if kind.is_empty() {
            let problem = "is missing; the object is left out";
            findings.wrong(field, problem, "write kind and apiVersion");
        } else if let Some((version, meant)) = self.meant() {
            let written = quoted(&format!("{api_version} {kind}"));
            let problem = format_args!(
                "{written} is not supported and left out; supported is {version} {meant}"
            );
            findings.wrong(field, problem, "correct it if this was meant");
        } else {
            let file = file.display();
            info!(%file, line, api_version, kind, "ignoring unsupported object");
        }
    }

    /// Returns the version and kind that were probably meant. `None` if the object is meant for another program.
    fn meant(&self) -> Option<(&'static str, &'static str)> {
        let group = |version: &str| version.split_once('/').map(|(group, _)| group.to_owned());
        let is_ours = READ.iter().any(|(version, _)| group(version) == group(&self.api_version));
        let written = self.kind.to_lowercase();
        let resembles = |kind: &str| {
            // A short name may have one wrong letter, a long one two.
            levenshtein(&written, &kind.to_lowercase()) <= (kind.len() / 3).min(2)
        };
        READ.into_iter().find(|(_, kind)| is_ours && resembles(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meant(api_version: &str, kind: &str) -> Option<&'static str> {
        let other = Other { line: 1, api_version: api_version.into(), kind: kind.into() };
        other.meant().map(|(_, kind)| kind)
    }

    #[test]
    fn misspelt_kinds_are_distinguished_from_foreign_ones() {
        for (version, kind, expected) in [
            ("v1", "Servcie", "Service"),
            ("v1", "service", "Service"),
            ("", "Services", "Service"),
            ("v1", "Nod", "Node"),
            ("discovery.k8s.io/v1", "EndpointSlices", "EndpointSlice"),
            // The right kind in the wrong group.
            ("v1", "EndpointSlice", "EndpointSlice"),
        ] {
            assert_eq!(meant(version, kind), Some(expected), "{version} {kind}");
        }
        for (version, kind) in [
            ("apps/v1", "Deployment"),
            ("v1", "Secret"),
            ("v1", "Pod"),
            ("v1", "Endpoints"),
            ("v1", ""),
            ("serving.knative.dev/v1", "Service"),
            ("rbac.authorization.k8s.io/v1", "Role"),
        ] {
            assert_eq!(meant(version, kind), None, "{version} {kind}");
        }
    }

    #[test]
    fn distance_counts_letters() {
        for (left, right, expected) in
            [("", "", 0), ("node", "", 4), ("", "node", 4), ("node", "mode", 1), ("ab", "ba", 2)]
        {
            assert_eq!(levenshtein(left, right), expected, "{left} {right}");
        }
    }
}
