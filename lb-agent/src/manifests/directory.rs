//! Merges the files of a directory and finds the changes.

mod cut;
mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use ipnet::IpNet;

use self::cut::{ObjectKey, Spec, cut};
use self::file::{manifest, text};
use super::notify::ChangedFiles;
use super::parse::{self, Contents};
use crate::snapshot::{Event, Finding, Findings, Interner, ViewHealth};

/// The files, and what was last reported of their objects.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    node: Box<str>,
    interner: Interner,
    /// The objects that each file defines.
    files: BTreeMap<Arc<str>, BTreeSet<Arc<ObjectKey>>>,
    objects: BTreeMap<Arc<ObjectKey>, Defined>,
    /// The objects that more than one file defines.
    twice: BTreeSet<Arc<ObjectKey>>,
    cidrs: BTreeMap<Box<str>, Vec<IpNet>>,
}

/// One object: the files that define it (the last one counts), and its last reported state.
#[derive(Debug, Default)]
struct Defined {
    /// Names of the files, sorted: the last one counts.
    files: Vec<Arc<str>>,
    /// Modification time of its file in seconds, as first seen: the age of a Service that has no creation time of its
    /// own.
    created: Option<i64>,
    said: Option<u64>,
}

/// The part of the view's problems about objects that more than one file defines.
const TWICE: &str = "defined twice";

impl Directory {
    /// Makes a directory without any read files.
    pub(super) fn new(path: PathBuf, node: &str) -> Self {
        Self {
            path,
            node: node.into(),
            interner: Interner::default(),
            files: BTreeMap::new(),
            objects: BTreeMap::new(),
            twice: BTreeSet::new(),
            cidrs: BTreeMap::new(),
        }
    }

    /// Returns the path of the directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads what changed and returns the differences as events. An error means that the directory itself could not be
    /// read: all objects stay, and the read must be repeated.
    pub(super) fn read(
        &mut self,
        changes: ChangedFiles,
        view: &ViewHealth,
    ) -> io::Result<Vec<Event>> {
        let mut waiting = match changes {
            ChangedFiles::Names(names) => names.iter().filter_map(|name| manifest(name)).collect(),
            ChangedFiles::All => self.all()?,
        };
        // These two are reported as a whole, once for all files of this read.
        let (cidrs, twice) = (self.cidrs.clone(), self.twice.clone());
        let mut events = Vec::new();
        while let Some(name) = waiting.pop_first() {
            self.read_file(&name, view, &mut events, &mut waiting);
        }
        if cidrs != self.cidrs {
            events.push(Event::ServiceCidrs(self.cidrs.values().flatten().copied().collect()));
        }
        if twice != self.twice {
            report(TWICE, self.defined_twice(), view);
        }
        Ok(events)
    }

    /// Returns the files that exist now and those that existed at the last read.
    fn all(&self) -> io::Result<BTreeSet<Arc<str>>> {
        let mut names: BTreeSet<_> = self.files.keys().cloned().collect();
        for entry in fs::read_dir(&self.path)? {
            names.extend(manifest(&entry?.file_name()));
        }
        Ok(names)
    }

    /// Reads one file. Adds to `waiting` the files that also define an object that this file no longer defines.
    fn read_file(
        &mut self,
        name: &Arc<str>,
        view: &ViewHealth,
        events: &mut Vec<Event>,
        waiting: &mut BTreeSet<Arc<str>>,
    ) {
        let path = self.path.join(&**name);
        let mut findings = Findings::of("file", "", &path.display().to_string());
        let specs = self.specs(&path, &mut findings);
        // A file that cannot be read is not a deleted one: its objects stay.
        view.unread(name, specs.is_none());
        if let Some(specs) = specs {
            self.say(name, specs, events, waiting);
        }
        report(name, findings.into_list(), view);
    }

    /// Returns the objects of a file, and none if the file is gone. `None` if it cannot be read: its last objects then
    /// stay in effect.
    fn specs(
        &mut self,
        path: &Path,
        findings: &mut Findings,
    ) -> Option<BTreeMap<Arc<ObjectKey>, Spec>> {
        let (text, written) = match text(path) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(BTreeMap::new()),
            Err(error) => {
                findings.wrong("content", format_args!("{error}; {STAYS}"), "make it readable");
                return None;
            }
        };
        let Contents { objects, others } = match parse::contents(&text) {
            Ok(contents) => contents,
            Err(wrong) => {
                let place = format_args!("line {}, column {}", wrong.line, wrong.column);
                findings.wrong(place, format_args!("{}; {STAYS}", wrong.message), "correct it");
                return None;
            }
        };
        for other in others {
            other.report(path, findings);
        }
        let mut specs = BTreeMap::new();
        for object in objects {
            let Some((key, mut spec)) = cut(object, &self.node, &mut self.interner, findings)
            else {
                continue;
            };
            if let Spec::Service(spec) = &mut spec
                && spec.created == 0
            {
                // The first time seen stays: a Service must not get younger because its file is edited. The oldest
                // Service wins a conflict.
                let first = self.objects.get(&key).and_then(|defined| defined.created);
                spec.created = first.unwrap_or(written);
            }
            if let Some((key, _)) = specs.get_key_value(&key) {
                let problem = format_args!("is defined more than once; the last one counts");
                findings.wrong(key, problem, "delete the others");
            }
            drop(specs.insert(Arc::new(key), spec));
        }
        Some(specs)
    }

    /// Replaces the objects that a file defines.
    fn say(
        &mut self,
        name: &Arc<str>,
        specs: BTreeMap<Arc<ObjectKey>, Spec>,
        events: &mut Vec<Event>,
        waiting: &mut BTreeSet<Arc<str>>,
    ) {
        let keys: BTreeSet<Arc<ObjectKey>> = specs.keys().cloned().collect();
        // A file without objects is forgotten, so that the map does not grow with every deleted file.
        let before = if keys.is_empty() {
            self.files.remove(name)
        } else {
            self.files.insert(Arc::clone(name), keys.clone())
        };
        for key in before.unwrap_or_default().difference(&keys) {
            self.undefine(key, name, events, waiting);
        }
        for (key, spec) in specs {
            self.define(&key, name, spec, events);
        }
    }

    fn define(
        &mut self,
        key: &Arc<ObjectKey>,
        name: &Arc<str>,
        spec: Spec,
        events: &mut Vec<Event>,
    ) {
        let defined = self.objects.entry(Arc::clone(key)).or_default();
        if let Err(at) = defined.files.binary_search(name) {
            // Nearly every object has one file; a vector would make room for four.
            defined.files.reserve_exact(1);
            defined.files.insert(at, Arc::clone(name));
        }
        if let Spec::Service(spec) = &spec {
            defined.created.get_or_insert(spec.created);
        }
        // The files are sorted by name, so the last one overrides the others.
        let counts = defined.files.last() == Some(name);
        if defined.files.len() > 1 {
            self.twice.insert(Arc::clone(key));
        }
        // The record is a hash instead of the object: it only serves to find out whether the content changed.
        let mut hasher = DefaultHasher::new();
        spec.hash(&mut hasher);
        let said = Some(hasher.finish());
        if !counts || defined.said == said {
            return;
        }
        defined.said = said;
        match spec {
            Spec::Service(spec) => events.push(Event::ServiceApplied(spec)),
            Spec::Slice(slice) => events.push(Event::SliceApplied(slice)),
            Spec::Node(node) => events.push(Event::NodeApplied(node)),
            Spec::ServiceCidr(name, cidrs) => drop(self.cidrs.insert(name, cidrs)),
        }
    }

    fn undefine(
        &mut self,
        key: &ObjectKey,
        name: &Arc<str>,
        events: &mut Vec<Event>,
        waiting: &mut BTreeSet<Arc<str>>,
    ) {
        let Some(defined) = self.objects.get_mut(key) else {
            return;
        };
        let counted = defined.files.last() == Some(name);
        defined.files.retain(|file| file != name);
        if defined.files.len() < 2 {
            self.twice.remove(key);
        }
        if let Some(next) = defined.files.last() {
            // The next file now defines the object, but its content is not kept: that file is read again.
            waiting.extend(counted.then(|| Arc::clone(next)));
            return;
        }
        drop(self.objects.remove(key));
        match key {
            ObjectKey::Service(name) => events.push(Event::ServiceDeleted(name.clone())),
            ObjectKey::Slice(name) => events.push(Event::SliceDeleted(name.clone())),
            ObjectKey::Node(name) => events.push(Event::NodeDeleted(name.clone())),
            ObjectKey::ServiceCidr(name) => drop(self.cidrs.remove(name)),
        }
    }

    fn defined_twice(&self) -> Vec<Finding> {
        let mut findings = Findings::of("directory", "", &self.path.display().to_string());
        for key in &self.twice {
            let files = self.objects.get(key).map(|defined| &*defined.files).unwrap_or_default();
            let files: Vec<&str> = files.iter().map(|file| &**file).collect();
            let last = files.last().copied().unwrap_or_default();
            let problem = format_args!("is in {}; {last} counts", files.join(" and "));
            findings.wrong(key, problem, "delete it from the others");
        }
        findings.into_list()
    }
}

const STAYS: &str = "its last valid content stays in effect";

fn report(part: &str, findings: Vec<Finding>, view: &ViewHealth) {
    for finding in &findings {
        tracing::warn!(%finding, "manifest has a problem");
    }
    view.problems_of(part, findings);
}

#[cfg(test)]
mod tests;
