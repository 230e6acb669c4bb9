//! The list of mutants, read from the JSON of cargo-mutants.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::shell;

/// One small change of the code.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Mutant {
    /// The file, from the root of the clone.
    pub(super) file: PathBuf,
    /// The name for a person: place and change.
    pub(super) name: String,
    /// The kind of change.
    pub(super) genre: Genre,
    /// The replacement of the text that is there.
    pub(super) replacement: String,
    /// The function it is in; constants have none.
    function: Option<Function>,
    span: Span,
}

/// The kinds of changes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(super) enum Genre {
    /// A function does nothing but return a value.
    FnValue,
    /// Another operator between two operands.
    BinaryOperator,
    /// No operator in front of an operand.
    UnaryOperator,
    /// An arm is not there.
    MatchArm,
    /// The guard of an arm is a constant.
    MatchArmGuard,
    /// A field is that of the base.
    StructField,
}

#[derive(Clone, Debug, Deserialize)]
struct Function {}

#[derive(Clone, Debug, Deserialize)]
struct Span {
    start: Place,
}

/// Line and column in a file, both from 1 on.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Mutant {
    /// Where it is.
    pub(super) const fn place(&self) -> Place {
        self.span.start
    }

    /// Whether it is in a function: what a constant is cannot be chosen when the tests run.
    pub(super) const fn is_in_function(&self) -> bool {
        self.function.is_some()
    }
}

/// Lists the mutants that `arguments` select, but for those that `.cargo/mutants.toml` names.
pub(super) fn list(arguments: &[String]) -> Result<Vec<Mutant>> {
    let mut command = shell::cargo();
    command.args(["mutants", "--list", "--json", "--package", "lb-common"]);
    let said = shell::output(command.args(arguments), "fix .cargo/mutants.toml")?;
    serde_json::from_str(&said).context("the list of cargo-mutants is no longer of the known form")
}
