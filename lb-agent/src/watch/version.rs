//! Resource versions, which show how recent the known state is.

/// A resource version. Kubernetes lets clients compare them as numbers. One that is not a number is only passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version(String);

impl Version {
    /// Returns the version of an object or list; `None` if it is empty.
    pub(super) fn of(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// Returns the text as the server wrote it.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Reports whether this is certainly older than another version.
    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        self.number().zip(other.number()).is_some_and(|(this, other)| this < other)
    }

    fn number(&self) -> Option<u64> {
        self.0.parse().ok()
    }
}

/// The newest version seen of a kind, and whether the next list must be at least as new.
#[derive(Debug, Default)]
pub(super) struct Newest {
    version: Option<Version>,
    /// The server cannot provide the known state, or has gone back: the next list takes its current state.
    is_void: bool,
}

impl Newest {
    /// Notes a version that was seen.
    pub(super) fn record(&mut self, seen: &Version) {
        if !self.version.as_ref().is_some_and(|newest| seen.is_older_than(newest)) {
            self.version = Some(seen.clone());
        }
    }

    /// Returns the version that the next list must not be older than.
    pub(super) fn bound(&self) -> Option<&Version> {
        self.version.as_ref().filter(|_| !self.is_void)
    }

    /// Reports whether no version was seen yet.
    pub(super) const fn is_unknown(&self) -> bool {
        self.version.is_none()
    }

    /// Reports whether this shows that the server's state is older than what it sent before.
    pub(super) fn is_newer_than(&self, seen: &Version) -> bool {
        self.version.as_ref().is_some_and(|newest| seen.is_older_than(newest))
    }

    /// Returns the newest version seen.
    pub(super) const fn version(&self) -> Option<&Version> {
        self.version.as_ref()
    }

    /// Allows the next list to have any age, as long as it is the server's current state.
    pub(super) const fn leave(&mut self) {
        self.is_void = true;
    }

    /// Notes that a list of this version is complete. Returns whether it is older than the known state, which is
    /// accepted only after [`Newest::leave`]. Fails if it is not accepted.
    pub(super) fn list(&mut self, version: &Version) -> Result<bool, ()> {
        let went_back = self.is_newer_than(version);
        if went_back && !self.is_void {
            return Err(());
        }
        *self = Self { version: Some(version.clone()), is_void: false };
        Ok(went_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version::of(text).expect("a version")
    }

    #[test]
    fn versions_compare_as_numbers_and_text_is_never_older() {
        assert!(version("9").is_older_than(&version("10")));
        assert!(!version("10").is_older_than(&version("9")));
        assert!(!version("a").is_older_than(&version("9")));
    }

    #[test]
    fn an_older_list_is_taken_only_when_the_rule_was_left() {
        let mut newest = Newest::default();
        assert_eq!(newest.list(&version("7")), Ok(false));
        newest.record(&version("9"));
        newest.record(&version("8"));
        assert_eq!(newest.bound(), Some(&version("9")));
        assert_eq!(newest.list(&version("8")), Err(()));
        newest.leave();
        assert_eq!(newest.bound(), None);
        assert_eq!(newest.list(&version("8")), Ok(true));
        assert_eq!(newest.bound(), Some(&version("8")));
    }
}
