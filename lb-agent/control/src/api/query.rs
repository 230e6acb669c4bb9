//! The parameters of a request.

use axum::extract::Query as Extract;
use hyper::http::request::Parts;

use super::failure::Failure;
use crate::field::Cause;

/// All parameters of the request, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

/// How strictly unknown and duplicate fields of a body are treated (`fieldValidation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validation {
    Ignore,
    Warn,
    Strict,
}

impl Query {
    pub(crate) fn of(parts: &Parts) -> Self {
        let pairs = Extract::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        Self(pairs.map(|it| it.0).unwrap_or_default())
    }

    /// Returns a parameter. An empty one counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|it| it.0 == name).map(|it| it.1.as_str());
        found.filter(|it| !it.is_empty())
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0.iter().any(|it| it.0 == name && !matches!(it.1.as_str(), "false" | "0"))
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    /// Reports whether the request is a dry run, which stores nothing. `options` names the type in error messages.
    pub(crate) fn is_dry(&self, options: &str) -> Result<bool, Failure> {
        let given: Vec<&str> =
            self.0.iter().filter(|it| it.0 == "dryRun").map(|it| it.1.as_str()).collect();
        dry(&given, options)
    }

    pub(crate) fn validation(&self, options: &str) -> Result<Validation, Failure> {
        match self.get("fieldValidation") {
            None | Some("Warn") => Ok(Validation::Warn),
            Some("Strict") => Ok(Validation::Strict),
            Some("Ignore") => Ok(Validation::Ignore),
            Some(other) => {
                let kinds = ["", "Ignore", "Strict", "Warn"];
                let cause = Cause::not_supported("fieldValidation", other, &kinds);
                Err(Failure::invalid_of("meta.k8s.io", options, "", &[cause]))
            }
        }
    }
}

/// Reads the values of `dryRun`. The only valid one is `All`.
pub(crate) fn dry(given: &[&str], options: &str) -> Result<bool, Failure> {
    match given {
        [] => Ok(false),
        all if all.iter().all(|it| *it == "All") => Ok(true),
        all => {
            let all: Vec<String> = all.iter().map(|&it| it.to_owned()).collect();
            let cause = Cause::not_supported("dryRun", all, &["All"]);
            Err(Failure::invalid_of("meta.k8s.io", options, "", &[cause]))
        }
    }
}
