//! Returns what Services need, if it differs from what was returned before.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem;

use super::{Changes, NoLocal, Tracker};
use crate::plan::ServiceName;
use crate::snapshot::Finding;
use crate::translate::{self, Translated};

impl Tracker {
    /// Returns the Services that need something else than when they were last returned, sorted by name; with `None` for
    /// one that needs nothing any more. Empty until the initial sync is complete.
    pub fn take(&mut self) -> Vec<(ServiceName, Option<Translated>)> {
        // A Service translated without its slices would look like one without endpoints and be refused.
        if !self.is_synced() {
            return Vec::new();
        }
        self.dirty_since = None;
        self.pending = Changes::default();
        self.triggers.take_pending();
        let mut taken = Vec::new();
        for name in mem::take(&mut self.dirty) {
            let translated = self.translate(&name);
            if self.give(&name, translated.as_ref()) {
                taken.push((name, translated));
            }
        }
        taken
    }

    /// Translates a Service; `None` if it needs nothing.
    fn translate(&self, name: &ServiceName) -> Option<Translated> {
        let (spec, slices) = self.index.get(name)?;
        let slices: Vec<_> = slices.iter().collect();
        let translated = translate::service(spec, &slices, &self.node.context);
        (translated != Translated::default()).then_some(translated)
    }

    /// Records the result that is returned, and reports whether it differs from the one before.
    fn give(&mut self, name: &ServiceName, translated: Option<&Translated>) -> bool {
        let no_local = translated.map(NoLocal::of).unwrap_or_default();
        let Some(before) = self.index.give(name, translated.map(fingerprint), no_local) else {
            return false;
        };
        self.no_local.replace(before, no_local);
        let findings = translated.map(|translated| &*translated.findings).unwrap_or_default();
        self.record_findings(name, findings);
        true
    }

    /// Replaces the findings of a Service, and notes those that it did not have before.
    fn record_findings(&mut self, name: &ServiceName, findings: &[Finding]) {
        let before = self.findings.remove(name).unwrap_or_default();
        let new = findings.iter().filter(|finding| !before.contains(finding));
        self.new_findings.extend(new.map(|finding| (name.clone(), finding.clone())));
        if !findings.is_empty() {
            drop(self.findings.insert(name.clone(), findings.to_vec()));
        }
    }
}

/// Returns a fingerprint of 128 bits. Equal translations have equal ones; two different ones share theirs less often
/// than memory flips a bit unnoticed.
fn fingerprint(translated: &Translated) -> u128 {
    let mut low = DefaultHasher::new();
    let mut high = DefaultHasher::new();
    // The same hash function gives another value after this prefix.
    high.write_u64(u64::MAX);
    translated.hash(&mut low);
    translated.hash(&mut high);
    (u128::from(high.finish()) << 64) | u128::from(low.finish())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::snapshot::fixtures::{slice, web};
    use crate::tracker::tests::{service, slice_of, synced};

    #[test]
    fn finding_is_new_once_while_its_service_changes() {
        let mut tracker = synced();
        let mut fields = |externals: &[&str], endpoint: &str| -> Vec<String> {
            let ports = json!([{ "port": 80 }]);
            let spec = json!({ "clusterIP": "10.0.0.1", "ports": ports, "externalIPs": externals });
            tracker.apply(service(web(spec)));
            tracker.apply(slice_of("web", slice("web-1", &[endpoint])));
            assert_eq!(tracker.take().len(), 1);
            tracker.new_findings().into_iter().map(|(_, finding)| finding.field).collect()
        };
        assert_eq!(fields(&["127.0.0.7"], "10.1.0.1"), ["spec.externalIPs[0]"]);
        assert_eq!(fields(&["127.0.0.7"], "10.1.0.2"), [""; 0]);
        assert_eq!(fields(&["127.0.0.7", "127.0.0.8"], "10.1.0.3"), ["spec.externalIPs[1]"]);
        assert_eq!(fields(&[], "10.1.0.3"), [""; 0]);
        assert_eq!(fields(&["127.0.0.7"], "10.1.0.3"), ["spec.externalIPs[0]"], "it came back");
    }
}
