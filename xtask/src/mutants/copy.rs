//! A copy of the clone whose lb-common contains all mutants, built once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::listed::Mutant;
use super::weave::weave;
use crate::{shell, workspace};

/// The source of the module that reads the selected mutant from the environment.
const CHOSEN: &str = include_str!("chosen.rs");
/// The largest number of builds until every mutant that the compiler refuses is removed.
const BUILDS: u32 = 20;

/// The copy of the clone.
pub(super) struct Copy {
    root: PathBuf,
}

/// The built test program.
pub(super) struct Built {
    /// The tests of lb-common.
    pub(super) tests: PathBuf,
    /// The numbers of the mutants in the program.
    pub(super) woven: BTreeSet<u32>,
}

impl Copy {
    /// Copies all files that git tracks or would add.
    pub(super) fn new() -> Result<Self> {
        let root = workspace::target().join("mutants/clone");
        let mut git = Command::new("git");
        git.current_dir(workspace::root());
        let known = ["ls-files", "--cached", "--others", "--exclude-standard"];
        for file in shell::output(git.args(known), "run it in a clone")?.lines() {
            let from = workspace::root().join(file);
            if from.is_file() && !from.is_symlink() {
                put(&root.join(file), &fs::read(&from)?)?;
            }
        }
        Ok(Self { root })
    }

    /// The directory of lb-common in the copy.
    pub(super) fn package(&self) -> PathBuf {
        self.root.join("lb-common")
    }

    /// Builds the tests with all mutants that the compiler accepts.
    pub(super) fn build(&self, mutants: &BTreeMap<u32, Mutant>) -> Result<Built> {
        let mut refused = BTreeSet::new();
        // All files are written, also files without an accepted mutant: they must lose the refused ones.
        let files: BTreeSet<&Path> = mutants.values().map(|mutant| &*mutant.file).collect();
        for _ in 0..BUILDS {
            let left = mutants
                .iter()
                .filter(|(number, mutant)| !refused.contains(*number) && mutant.is_in_function());
            let woven = self.weave(&files, left)?;
            match self.compile("mutants/build", "1")? {
                Ok(tests) => return Ok(Built { tests, woven }),
                Err(more) if more.is_empty() => bail!("the code with mutants does not compile"),
                Err(more) => refused.extend(more),
            }
        }
        bail!("after {BUILDS} builds the compiler still refuses mutants")
    }

    fn weave<'a>(
        &self,
        files: &BTreeSet<&'a Path>,
        mutants: impl Iterator<Item = (&'a u32, &'a Mutant)>,
    ) -> Result<BTreeSet<u32>> {
        let mut by_file: BTreeMap<&Path, Vec<(u32, &Mutant)>> =
            files.iter().map(|file| (*file, Vec::new())).collect();
        for (number, mutant) in mutants {
            by_file.entry(&mutant.file).or_default().push((*number, mutant));
        }
        let mut woven = BTreeSet::new();
        for (file, mutants) in by_file {
            let code = fs::read_to_string(workspace::root().join(file))?;
            let (code, numbers) =
                weave(&code, &mutants).with_context(|| file.display().to_string())?;
            put(&self.root.join(file), code.as_bytes())?;
            woven.extend(numbers);
        }
        let library = fs::read_to_string(workspace::root().join("lb-common/src/lib.rs"))?;
        let features =
            "#![feature(core_intrinsics, const_eval_select)]\n#![allow(internal_features)]\n";
        let library = library.replacen("#![no_std]", &format!("#![no_std]\n{features}"), 1);
        put(
            &self.package().join("src/lib.rs"),
            format!("{library}\npub mod mutant;\n").as_bytes(),
        )?;
        put(&self.package().join("src/mutant.rs"), CHOSEN.as_bytes())?;
        Ok(woven)
    }

    /// Removes all mutants from the copy, and builds the tests.
    pub(super) fn build_plain(&self, mutants: &BTreeMap<u32, Mutant>) -> Result<PathBuf> {
        let files: BTreeSet<&Path> = mutants.values().map(|mutant| &*mutant.file).collect();
        for file in files.into_iter().chain([Path::new("lb-common/src/lib.rs")]) {
            put(&self.root.join(file), &fs::read(workspace::root().join(file))?)?;
        }
        self.compile_alone()?.context("the code without mutants does not compile")
    }

    /// Builds the tests of the copy without mutants with this one alone; `None` if the compiler refuses it.
    pub(super) fn build_alone(&self, mutant: &Mutant) -> Result<Option<PathBuf>> {
        let file = self.root.join(&mutant.file);
        let plain = fs::read_to_string(&file)?;
        let code = mutant.applied(&plain).with_context(|| mutant.name.clone())?;
        put(&file, code.as_bytes())?;
        let tests = self.compile_alone();
        put(&file, plain.as_bytes())?;
        tests
    }

    /// Compiles the tests without optimization, because here the build takes longer than they do.
    fn compile_alone(&self) -> Result<Option<PathBuf>> {
        Ok(self.compile("mutants/alone", "0")?.ok())
    }

    /// Compiles the tests; returns the test program, or the numbers of the mutants that cause errors.
    fn compile(&self, target: &str, level: &str) -> Result<Result<PathBuf, BTreeSet<u32>>> {
        let output = shell::cargo()
            .current_dir(&self.root)
            .args(["test", "--package", "lb-common", "--lib", "--no-run"])
            .args(["--message-format", "json"])
            .env("CARGO_TARGET_DIR", workspace::target().join(target))
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", level)
            .env("RUSTFLAGS", "--cap-lints allow")
            .env("RUSTC_BOOTSTRAP", "1")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .context("cargo could not be started")?;
        let said = String::from_utf8_lossy(&output.stdout);
        let mut numbers = BTreeSet::new();
        for message in said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            if let Some(tests) = message["executable"].as_str().filter(|_| output.status.success())
            {
                return Ok(Ok(tests.into()));
            }
            if message["message"]["level"] == "error" {
                for span in message["message"]["spans"].as_array().into_iter().flatten() {
                    numbers.extend(self.mutants_at(span));
                }
            }
        }
        Ok(Err(numbers))
    }

    /// The mutants in the code of a compiler message, or the last one before it.
    fn mutants_at(&self, span: &Value) -> Vec<u32> {
        const MARK: &str = "mutant :: is (";
        let file = self.root.join(span["file_name"].as_str().unwrap_or_default());
        let code = fs::read_to_string(file).unwrap_or_default();
        let place = |name: &str| span[name].as_u64().unwrap_or(0) as usize;
        let (start, end) = (place("byte_start"), place("byte_end"));
        let number = |at: usize| {
            let digits = code.get(at + MARK.len()..)?.split(|it: char| !it.is_ascii_digit()).next();
            digits?.parse().ok()
        };
        let marks: Vec<usize> = code.match_indices(MARK).map(|(at, _)| at).collect();
        let within = marks.iter().filter(|at| (start..end).contains(*at));
        let mut found: Vec<u32> = within.filter_map(|at| number(*at)).collect();
        if found.is_empty() {
            found.extend(marks.iter().rfind(|at| **at < start).and_then(|at| number(*at)));
        }
        found
    }
}

/// Writes a file unless it already has this content, so that cargo rebuilds only what changed.
fn put(file: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(file).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    fs::create_dir_all(file.parent().context("a file in a directory")?)?;
    fs::write(file, bytes).with_context(|| file.display().to_string())
}
