//! Keeps node names, zones, port names and hints once, however many endpoints have them.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// The clients for which an endpoint is meant (contract 2.3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hints {
    /// `hints.forZones`.
    pub zones: Box<[Arc<str>]>,
    /// `hints.forNodes`.
    pub nodes: Box<[Arc<str>]>,
}

/// An interner of texts and hints; each converter has its own.
#[derive(Debug, Default)]
pub struct Interner {
    texts: Pool<str>,
    hints: Pool<Hints>,
}

impl Interner {
    /// Returns the shared copy of a text.
    pub fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(shared) = self.texts.set.get(text) {
            return Arc::clone(shared);
        }
        self.texts.keep(Arc::from(text))
    }

    /// Returns the shared copy of hints.
    pub fn hints(&mut self, hints: Hints) -> Arc<Hints> {
        if let Some(shared) = self.hints.set.get(&hints) {
            return Arc::clone(shared);
        }
        self.hints.keep(Arc::new(hints))
    }
}

#[derive(Debug)]
struct Pool<T: ?Sized> {
    set: HashSet<Arc<T>>,
    /// When the set grows beyond this, texts without another user are dropped.
    limit: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self { set: HashSet::new(), limit: 1024 }
    }
}

impl<T: ?Sized + Eq + Hash> Pool<T> {
    fn keep(&mut self, new: Arc<T>) -> Arc<T> {
        if self.set.len() >= self.limit {
            // A cleanup whenever the set has doubled costs little per new text.
            self.set.retain(|shared| Arc::strong_count(shared) > 1);
            self.limit = (2 * self.set.len()).max(1024);
        }
        self.set.insert(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_one_copy() {
        let mut interner = Interner::default();
        assert!(Arc::ptr_eq(&interner.text("zone-a"), &interner.text("zone-a")));
        assert!(!Arc::ptr_eq(&interner.text("zone-a"), &interner.text("zone-b")));
    }

    #[test]
    fn unused_texts_are_forgotten() {
        let mut interner = Interner::default();
        let kept = interner.text("kept");
        for at in 0..100_000 {
            drop(interner.text(&format!("node-{at}")));
        }
        assert!(interner.texts.set.len() <= 1024);
        assert!(Arc::ptr_eq(&kept, &interner.text("kept")));
    }
}
