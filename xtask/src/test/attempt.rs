//! One run of a test program to its end: the program ends by itself, or is killed when one of its tests exceeds its
//! limit.
//!
//! Its output goes to a file, so that neither a child that holds the output open nor a full pipe can stop the run.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::binaries::Binary;
use super::events::{self, Case, Line, Outcome};
use super::{SKIPPED, limit, machine, picture, tree};

/// The name of the case for a program that failed outside its tests.
pub(super) const PROGRAM: &str = "(program)";
/// The interval at which the process and its log are checked.
const LOOK: Duration = Duration::from_millis(200);

/// A test program, and the parameters of its run.
pub(super) struct Attempt<'a> {
    pub(super) binary: &'a Binary,
    /// Arguments that select tests; empty for all.
    pub(super) selection: Vec<String>,
    /// The number of parallel tests.
    pub(super) threads: &'a str,
    /// The file for its output; its directory exists.
    pub(super) log: PathBuf,
    /// The end of the time for the whole run.
    pub(super) end: Option<Instant>,
    /// The program that removes leftovers of an ended test program.
    pub(super) sweeper: PathBuf,
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct Run {
    /// The file with its output.
    pub(super) log: PathBuf,
    pub(super) cases: Vec<Case>,
    /// Lines for people, in order.
    pub(super) text: String,
    pub(super) seconds: f64,
    /// CPU seconds, including children that were waited for.
    pub(super) cpu: f64,
    /// Whether all selected tests have run.
    pub(super) is_whole: bool,
    /// Whether it was killed because the time for the whole run was over.
    pub(super) is_out_of_time: bool,
}

/// A running test.
struct Begun {
    name: String,
    since: Instant,
    /// Whether it printed that it tests nothing on this machine.
    is_skipped: bool,
}

/// The part of the log that was read.
struct Followed {
    read: u64,
    /// The time at which a test last began or ended.
    last_event: Instant,
    partial: Vec<u8>,
    begun: Vec<Begun>,
    cases: Vec<Case>,
    text: Vec<String>,
}

impl Attempt<'_> {
    /// Runs the program; an error means that it could not be started or followed.
    pub(super) fn run(&self) -> Result<Run> {
        let Binary { program, directory, .. } = self.binary;
        let said = File::create(&self.log).with_context(|| format!("{}", self.log.display()))?;
        let complaints = said.try_clone()?;
        let began = Instant::now();
        let mut command = Command::new(program);
        command
            .current_dir(directory)
            .args(events::ARGUMENTS)
            .args(&self.selection)
            .env("RUST_TEST_THREADS", self.threads)
            .env("RUSTC_BOOTSTRAP", "1")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(said)
            .stderr(complaints);
        let mut child = command.spawn().with_context(|| format!("tests {}", program.display()))?;
        let mut followed = Followed::new();
        let late = self.follow(child.id(), &mut followed)?;
        let cpu = tree::cpu(child.id());
        let (status, left) = self.finish(&mut child)?;
        followed.read_on(&self.log)?;
        followed.text.extend(left);
        let is_out_of_time = matches!(late, Some(Late::Budget));
        let is_whole = followed.conclude(&self.binary.name, status, late);
        let Followed { cases, mut text, .. } = followed;
        text.push(String::new());
        let text = text.join("\n");
        let seconds = began.elapsed().as_secs_f64();
        let log = self.log.clone();
        Ok(Run { log, cases, text, seconds, cpu, is_whole, is_out_of_time })
    }

    /// Follows the log until the program has ended or must be killed.
    fn follow(&self, id: u32, followed: &mut Followed) -> Result<Option<Late>> {
        let mut slowness = 1.0_f64;
        loop {
            if has_ended(id)? {
                return Ok(None);
            }
            followed.read_on(&self.log)?;
            if self.end.is_some_and(|end| Instant::now() > end) {
                return Ok(Some(Late::Budget));
            }
            if let Some((name, allowed)) = self.late(followed, slowness) {
                // The machine may have become slower, so its slowness is measured before a test is killed.
                let now = machine::slowness();
                if now <= slowness {
                    let picture = picture::of(id);
                    let said = format!("killed after {allowed:?}\n{picture}");
                    return Ok(Some(Late::Test { name, said }));
                }
                slowness = now;
            }
            thread::park_timeout(LOOK);
        }
    }

    /// The test that has exceeded its limit; without a name if none has begun or all have ended.
    fn late(&self, followed: &Followed, slowness: f64) -> Option<(Option<String>, Duration)> {
        let file = &self.binary.name;
        let allowed = |name: &str| limit::of(file, name).mul_f64(slowness);
        if followed.begun.is_empty() {
            let allowed = allowed("");
            return (followed.last_event.elapsed() > allowed).then_some((None, allowed));
        }
        let is_late = |it: &&Begun| it.since.elapsed() > allowed(&it.name);
        let late = followed.begun.iter().find(is_late)?;
        Some((Some(late.name.clone()), allowed(&late.name)))
    }

    /// Kills the rest of the program, waits for it, and for the removal of all resources with its process id.
    fn finish(&self, child: &mut Child) -> Result<(ExitStatus, Option<String>)> {
        let id = child.id();
        // The tree is ended also after a regular end, because children must not outlive a test.
        tree::end(id);
        let status = child.wait().context("end of the program of tests")?;
        let left = tree::clean_up(id, &self.sweeper).err();
        Ok((status, left))
    }
}

/// The reason why a program was killed.
enum Late {
    Budget,
    Test { name: Option<String>, said: String },
}

impl Followed {
    fn new() -> Self {
        let (partial, begun, cases, text) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { read: 0, last_event: Instant::now(), partial, begun, cases, text }
    }

    /// Reads the new part of the log, up to the last complete line.
    fn read_on(&mut self, log: &PathBuf) -> Result<()> {
        let mut file = File::open(log).with_context(|| format!("{}", log.display()))?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = std::mem::take(&mut self.partial);
        self.read += io::copy(&mut file, &mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.partial = bytes.split_off(whole);
        for line in String::from_utf8_lossy(&bytes).lines() {
            self.take(line);
        }
        Ok(())
    }

    fn take(&mut self, line: &str) {
        for line in events::parse(line) {
            match line {
                Line::Begun(name) => {
                    self.last_event = Instant::now();
                    self.begun.push(Begun { name, since: self.last_event, is_skipped: false });
                }
                Line::Ended(mut case) => {
                    self.last_event = Instant::now();
                    let is_skipped =
                        self.begun.iter().any(|it| it.name == case.name && it.is_skipped);
                    if is_skipped && case.outcome == Outcome::Passed {
                        case.outcome = Outcome::Ignored;
                    }
                    self.begun.retain(|it| it.name != case.name);
                    self.show(&case);
                    self.cases.push(case);
                }
                Line::Text(text) => {
                    // The line names no test, so with several under way it cannot be attributed.
                    if let ([begun], true) = (self.begun.as_mut_slice(), text.starts_with(SKIPPED))
                    {
                        begun.is_skipped = true;
                    }
                    self.text.push(text);
                }
                Line::Other => {}
            }
        }
    }

    fn show(&mut self, case: &Case) {
        let Case { name, outcome, seconds, output } = case;
        let word = match outcome {
            Outcome::Passed => "ok",
            Outcome::Failed => "FAILED",
            Outcome::Ignored => "ignored",
            Outcome::Late => "LATE",
        };
        self.text.push(format!("test {name} ... {word} ({seconds:.1} s)"));
        self.text.extend(output.lines().map(|line| format!("    {line}")));
    }

    /// Evaluates the end of the program; returns whether all selected tests have run.
    fn conclude(&mut self, file: &str, status: ExitStatus, late: Option<Late>) -> bool {
        let partial = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        if !partial.is_empty() {
            self.take(&partial);
        }
        let begun = std::mem::take(&mut self.begun);
        let had_failures = self.cases.iter().any(|case| case.outcome == Outcome::Failed);
        let (outcome, said, named) = match late {
            Some(Late::Budget) => return false,
            Some(Late::Test { name, said }) => (Outcome::Late, said, name),
            None if begun.is_empty() && (status.success() || had_failures) => return true,
            None => {
                let signal = status.signal().map(|it| format!(", signal {it}")).unwrap_or_default();
                (Outcome::Failed, format!("{file} ended with {status}{signal}\n"), None)
            }
        };
        let was_idle = begun.is_empty();
        for it in begun {
            // A test that ran beside the late one was killed with it. It is not at fault and runs again.
            if named.as_ref().is_none_or(|name| *name == it.name) {
                let seconds = it.since.elapsed().as_secs_f64();
                let case = Case { name: it.name, outcome, seconds, output: said.clone() };
                self.show(&case);
                self.cases.push(case);
            }
        }
        if was_idle {
            let case = Case { name: PROGRAM.to_owned(), outcome, seconds: 0.0, output: said };
            self.show(&case);
            self.cases.push(case);
        }
        // If the program itself is at fault, another start would fail in the same way.
        was_idle
    }
}

/// Whether the process has ended; it stays a zombie, so that its CPU time can be read.
fn has_ended(id: u32) -> Result<bool> {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let state = waitid(Id::Pid(Pid::from_raw(id.cast_signed())), flags)?;
    Ok(state != WaitStatus::StillAlive)
}
