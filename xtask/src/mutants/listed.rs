//! The list of mutants, read from the JSON of cargo-mutants.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::shell;

/// One small change of the code.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Mutant {
    /// The file, relative to the root of the clone.
    pub(super) file: PathBuf,
    /// The name for people: place and change.
    pub(super) name: String,
    /// The kind of change.
    pub(super) genre: Genre,
    /// The text that replaces the original text.
    pub(super) replacement: String,
    /// The function that contains it; a mutant in a constant has none.
    function: Option<Function>,
    span: Span,
}

/// The kinds of changes, as cargo-mutants names them.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(super) enum Genre {
    /// The function body only returns a value.
    FnValue,
    /// Another binary operator.
    BinaryOperator,
    /// The unary operator is removed.
    UnaryOperator,
    /// A match arm is removed.
    MatchArm,
    /// The guard of a match arm becomes a constant.
    MatchArmGuard,
    /// A struct field is taken from the base expression.
    StructField,
}

#[derive(Clone, Debug, Deserialize)]
struct Function {}

#[derive(Clone, Debug, Deserialize)]
struct Span {
    start: Position,
}

/// A line and a column in a file, both counted from 1.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Mutant {
    /// The place of the change.
    pub(super) const fn position(&self) -> Position {
        self.span.start
    }

    /// Whether it is in a function. A constant cannot depend on a selection at run time.
    pub(super) const fn is_in_function(&self) -> bool {
        self.function.is_some()
    }
}

/// Lists the mutants that `arguments` select, without those that `.cargo/mutants.toml` names.
pub(super) fn list(arguments: &[String]) -> Result<Vec<Mutant>> {
    let mut command = shell::cargo();
    command.args(["mutants", "--list", "--json", "--package", "lb-common"]);
    let said = shell::output(command.args(arguments), "fix .cargo/mutants.toml")?;
    serde_json::from_str(&said).context("the list of cargo-mutants is no longer of the known form")
}
