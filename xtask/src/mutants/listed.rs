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

/// The text that a mutant replaces; `end` is the place after its last character.
#[derive(Clone, Debug, Deserialize)]
struct Span {
    start: Position,
    end: Position,
}

/// A line and a column in a file, both counted from 1.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Position {
    /// The place in the code, in bytes.
    fn byte(self, code: &str) -> Option<usize> {
        let line = self.line.checked_sub(1)?;
        let before: usize = code.split_inclusive('\n').take(line).map(str::len).sum();
        let text = code.get(before..)?;
        let column = self.column.checked_sub(1)?;
        let (at, _) = text.char_indices().nth(column)?;
        Some(before + at)
    }
}

impl Mutant {
    /// The place of the change.
    pub(super) const fn position(&self) -> Position {
        self.span.start
    }

    /// The code of its file with this change alone; `None` if the file has another form.
    pub(super) fn applied(&self, code: &str) -> Option<String> {
        let (start, end) = (self.span.start.byte(code)?, self.span.end.byte(code)?);
        Some([code.get(..start)?, &self.replacement, code.get(end..)?].concat())
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

#[cfg(test)]
mod tests {
    use super::Mutant;

    #[test]
    fn mutant_replaces_the_text_at_its_place() {
        let mutant: Mutant = serde_json::from_str(
            r#"{"file": "a.rs", "name": "", "genre": "BinaryOperator", "replacement": ">>", "function": null,
                "span": {"start": {"line": 2, "column": 7}, "end": {"line": 2, "column": 9}}}"#,
        )
        .expect("a mutant");
        let changed = mutant.applied("// é\n1 + 1 << 2;\n");
        assert_eq!(changed.as_deref(), Some("// é\n1 + 1 >> 2;\n"));
        assert_eq!(mutant.applied("one line\n"), None);
    }
}
