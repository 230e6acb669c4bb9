//! The output of a command: shown as it comes, kept, and searched for figures.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// The prefix of a line with a figure, which tests print by `lb_tests::campaign::figure`.
const FIGURE: &str = "figure: ";
/// The prefix of libtest's line about the tests of a file.
const TESTS: &str = "test result: ok. ";
/// The time in which lines are still read after the command has ended.
const LATE: Duration = Duration::from_millis(500);

/// A figure: its name, and its value with the unit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) value: String,
}

/// Runs a command and shows its output; returns exit status and output. A process that the command leaves behind with
/// an open output does not block this function.
pub(super) fn shown(command: &mut Command) -> Result<(ExitStatus, String)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    let output = child.stdout.take().context("the output of a command")?;
    let (send, lines) = mpsc::channel();
    // The thread may outlive this function if a process keeps the output open.
    drop(thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    }));
    let mut said = String::new();
    loop {
        match lines.recv_timeout(LATE) {
            Ok(line) => {
                print!("{line}");
                said.push_str(&line);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok((child.wait()?, said)),
            Err(RecvTimeoutError::Timeout) => {
                if let Some(status) = child.try_wait()? {
                    return Ok((status, said));
                }
            }
        }
    }
}

/// Finds the figures in the output of commands. The number of passed tests is one; without any other figure, the exit
/// code is one.
pub(super) fn figures(said: &str) -> Vec<Figure> {
    let mut all: Vec<Figure> = said.lines().filter_map(figure).collect();
    let passed = |line: &str| -> Option<u32> {
        line.strip_prefix(TESTS)?.split_once(" passed")?.0.parse().ok()
    };
    let passed: u32 = said.lines().filter_map(passed).sum();
    if passed > 0 {
        all.push(Figure { name: "tests passed".to_owned(), value: format!("{passed} tests") });
    }
    if all.is_empty() {
        all.push(Figure { name: "exit code".to_owned(), value: "0".to_owned() });
    }
    all
}

/// Parses `figure: NAME VALUE UNIT`; only the name may consist of several words.
fn figure(line: &str) -> Option<Figure> {
    let mut words = line.strip_prefix(FIGURE)?.trim_end().rsplitn(3, ' ');
    let (unit, value, name) = (words.next()?, words.next()?, words.next()?);
    Some(Figure { name: name.to_owned(), value: format!("{value} {unit}") })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Figure, figures, shown};

    fn of(name: &str, value: &str) -> Figure {
        Figure { name: name.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn figures_are_found_among_other_lines() {
        let said = "running 1 test\nfigure: lost questions 0 questions\nfigure: broken\n\
                    test result: ok. 2 passed; 0 failed\ntest result: ok. 1 passed; 0 failed\n";
        assert_eq!(
            figures(said),
            [of("lost questions", "0 questions"), of("tests passed", "3 tests")]
        );
    }

    #[test]
    fn exit_code_is_the_figure_of_a_command_without_figures() {
        assert_eq!(figures("test result: ok. 0 passed; 0 failed\n"), [of("exit code", "0")]);
    }

    #[test]
    fn output_and_end_of_a_command_are_returned() {
        let (status, said) =
            shown(Command::new("sh").args(["-c", "echo one; echo two; exit 3"])).unwrap();
        assert_eq!((status.code(), &*said), (Some(3), "one\ntwo\n"));
    }

    #[test]
    fn process_that_holds_the_output_open_does_not_block() {
        let (status, said) = shown(Command::new("sh").args(["-c", "sleep 60 & echo $!"])).unwrap();
        assert!(status.success());
        let left = said.trim();
        assert!(Command::new("kill").arg(left).status().unwrap().success(), "{left} had ended");
    }
}
