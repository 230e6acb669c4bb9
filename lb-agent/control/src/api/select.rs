//! Selectors by labels and by fields.

use super::failure::Failure;
use super::query::Query;
use crate::kind::Kind;
use crate::store::Object;

/// One condition on a label.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

/// The conditions that an object must satisfy to be listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    labels: Vec<Requirement>,
    /// Field, value, and whether the field must equal the value (true) or differ from it (false).
    fields: Vec<(String, String, bool)>,
}

impl Selector {
    pub(crate) fn of(query: &Query, kind: &Kind) -> Result<Self, Failure> {
        let labels = labels(query.get("labelSelector").unwrap_or_default())
            .map_err(|text| Failure::bad_request(format!("unable to parse requirement: {text}")))?;
        let fields = fields(query.get("fieldSelector").unwrap_or_default(), kind)?;
        Ok(Self { labels, fields })
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        let label = |key: &str| {
            // Labels are kept sorted beside the JSON, so that a list parses no object.
            let at = object.labels.binary_search_by(|it| it.0.as_str().cmp(key)).ok()?;
            object.labels.get(at).map(|it| &it.1)
        };
        let is_met = |requirement: &Requirement| match requirement {
            Requirement::In(key, values) => label(key).is_some_and(|it| values.contains(it)),
            // As upstream defines it, an object without the label matches `!=` and `notin`.
            Requirement::NotIn(key, values) => label(key).is_none_or(|it| !values.contains(it)),
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Absent(key) => label(key).is_none(),
        };
        let field = |name: &str| match name {
            "metadata.name" => object.key.name.as_str(),
            "metadata.namespace" => object.key.namespace.as_str(),
            name => object.fields.iter().find(|it| it.0 == name).map_or("", |it| it.1.as_str()),
        };
        self.labels.iter().all(is_met)
            && self.fields.iter().all(|(name, value, is_equal)| (field(name) == value) == *is_equal)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }
}

fn labels(text: &str) -> Result<Vec<Requirement>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    // A comma inside parentheses separates values of one requirement, not requirements.
    let mut depth = 0_i32;
    let parts = text.split(|it: char| {
        depth += i32::from(it == '(') - i32::from(it == ')');
        it == ',' && depth == 0
    });
    parts.map(|it| requirement(it.trim())).collect()
}

fn requirement(text: &str) -> Result<Requirement, String> {
    let wrong = || format!("found {text:?}, expected: identifier, '!', '=', '!=', 'in' or 'notin'");
    let made = if let Some(key) = text.strip_prefix('!') {
        Requirement::Absent(key.trim().into())
    // `!=` is searched before `=`, which is a part of it.
    } else if let Some((key, value)) = text.split_once("!=") {
        Requirement::NotIn(key.trim().into(), vec![value.trim().into()])
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        Requirement::In(key.trim().into(), vec![value.trim().into()])
    } else if let Some((head, values)) = text.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(wrong)?;
        let values: Vec<String> = values.split(',').map(|it| it.trim().to_owned()).collect();
        match head.split_whitespace().collect::<Vec<_>>().as_slice() {
            [key, "in"] => Requirement::In((*key).into(), values),
            [key, "notin"] => Requirement::NotIn((*key).into(), values),
            _ => return Err(wrong()),
        }
    } else {
        Requirement::Exists(text.into())
    };
    let (key, values) = match &made {
        Requirement::In(key, values) | Requirement::NotIn(key, values) => (key, values.as_slice()),
        Requirement::Exists(key) | Requirement::Absent(key) => (key, &[][..]),
    };
    let faults = crate::check::label_key(key);
    let values = values.iter().flat_map(|it| crate::check::label_value(it));
    match faults.into_iter().chain(values).next() {
        Some(fault) => Err(fault),
        None => Ok(made),
    }
}

fn fields(text: &str, kind: &Kind) -> Result<Vec<(String, String, bool)>, Failure> {
    let mut all = Vec::new();
    for part in text.split(',').filter(|it| !it.is_empty()) {
        let (name, value, is_equal) = if let Some((name, value)) = part.split_once("!=") {
            (name, value, false)
        } else if let Some((name, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (name, value, true)
        } else {
            let text = format!("invalid selector: '{text}'; can't understand '{part}'");
            return Err(Failure::bad_request(text));
        };
        if !kind.can_select(name) {
            return Err(Failure::bad_request(format!("field label not supported: {name}")));
        }
        all.push((kind.kept_field(name).to_owned(), value.to_owned(), is_equal));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statement_94_label_selectors() {
        use Requirement::{Absent, Exists, In, NotIn};
        let [a, b, c] = ["a", "b", "c"].map(str::to_owned);
        let cases = [
            ("a=b", In(a.clone(), vec![b.clone()])),
            ("a == b", In(a.clone(), vec![b.clone()])),
            ("a!=b", NotIn(a.clone(), vec![b.clone()])),
            ("a in (b,c)", In(a.clone(), vec![b.clone(), c])),
            ("a notin (b)", NotIn(a.clone(), vec![b])),
            ("a", Exists(a.clone())),
            ("!a", Absent(a)),
        ];
        for (text, expected) in cases {
            assert_eq!(labels(text), Ok(vec![expected]), "{text}");
        }
        assert_eq!(labels("a in (b,c),!c").unwrap().len(), 2);
        for wrong in ["a in b", "a,,b", "a in (b", "=", "a=b=c", "a b"] {
            assert!(labels(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn statement_94_field_selectors() {
        let kind = Kind::find("", "services").unwrap();
        assert_eq!(
            fields("spec.clusterIP!=None,metadata.name=a", kind).unwrap(),
            [
                ("spec.clusterIP".into(), "None".into(), false),
                ("metadata.name".into(), "a".into(), true)
            ]
        );
        let refused = fields("spec.foo=1", kind).unwrap_err();
        assert_eq!(refused.message, "field label not supported: spec.foo");
        let events = Kind::find("events.k8s.io", "events").unwrap();
        assert_eq!(fields("regarding.name=a", events).unwrap()[0].0, "involvedObject.name");
    }
}
