//! `cargo xtask prove`: campaigns (long runs), and their figures in `docs/proof.md`.
//!
//! A campaign runs the tests of `cargo xtask test` in their long form, with `LB_PROVE` set, or a command that is too
//! long for every run. A campaign that fails writes no figure: the rows of its last success stay.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use self::campaigns::{Campaign, Work};
use self::circumstances::Circumstances;
use self::document::Row;
use crate::setup::{self, cargo_tools};
use crate::step::step;
use crate::test::binaries;
use crate::{shell, workspace};

mod campaigns;
mod circumstances;
mod document;
mod output;

/// The selection of campaigns.
#[derive(Args)]
pub(crate) struct Options {
    /// Campaigns to run, one after the other; all of them if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Only list the campaigns
    #[arg(long)]
    list: bool,
}

/// Runs the selected campaigns; one that fails does not stop the others.
pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen = campaigns::chosen(&options.names)?;
    if options.list {
        for campaign in chosen {
            println!("{:<13}{} ({})", campaign.name, campaign.proves, campaign.expected);
        }
        return Ok(());
    }
    if chosen.iter().any(|campaign| campaign.needs_root()) {
        shell::need_root(
            "campaigns create network namespaces and load eBPF programs",
            "prove ... with the same arguments",
        )?;
    }
    let circumstances = Circumstances::here()?;
    let mut failed = Vec::new();
    for campaign in chosen {
        if let Err(error) = prove(campaign, &circumstances) {
            println!("campaign {}: {error:#}", campaign.name);
            failed.push(campaign.name);
        }
    }
    ensure!(failed.is_empty(), "failed campaigns: {}", failed.join(", "));
    Ok(())
}

/// Runs a campaign and replaces its rows in the document.
fn prove(campaign: &Campaign, circumstances: &Circumstances) -> Result<()> {
    let parts: Vec<(String, Duration)> =
        step(format!("campaign {}", campaign.name), campaign.expected, || {
            campaign.work.iter().map(done).collect()
        })?;
    let said: String = parts.iter().map(|(said, _)| said.as_str()).collect();
    let took: Duration = parts.iter().map(|(_, took)| *took).sum();
    let row = |figure: output::Figure| Row {
        campaign: campaign.name.to_owned(),
        figure: figure.name,
        value: figure.value,
        commit: circumstances.commit.clone(),
        machine: circumstances.machine.clone(),
        date: circumstances.date.clone(),
        minutes: format!("{:.1}", took.as_secs_f64() / 60.0),
    };
    let rows: Vec<Row> = output::figures(&said).into_iter().map(row).collect();
    let file = file();
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    let text = document::rewritten(&text, campaign.name, &rows)?;
    fs::write(&file, text).with_context(|| format!("write {}", file.display()))
}

/// The path of the document with the figures.
fn file() -> PathBuf {
    workspace::root().join("docs/proof.md")
}

/// Runs a part of a campaign; returns its output and its time without the build.
fn done(work: &Work) -> Result<(String, Duration)> {
    let mut command;
    let remedy = match work {
        Work::Tests(files) => {
            setup::run()?;
            binaries::build(files)?;
            command = tests(files);
            // Without it, libtest hides the figures of tests that pass.
            command.args(["--", "--show-output"]);
            "read the failure above; `cargo xtask prove NAME` runs one campaign"
        }
        Work::Command(arguments) => {
            // An earlier campaign may have rebuilt this program, whose file name then differs, so cargo runs it.
            command = shell::cargo();
            command.arg("xtask").args(*arguments).current_dir(workspace::root());
            "read the message above"
        }
        Work::Deny => {
            cargo_tools::ensure(&cargo_tools::CARGO_DENY)?;
            command = shell::cargo();
            let checks = ["bans", "licenses", "sources"];
            command.args(["deny", "--log-level", "error", "check"]).args(checks);
            "choose another dependency, or give the reason for an exception in deny.toml"
        }
    };
    let began = Instant::now();
    let (status, said) = output::shown(&mut command).context(remedy)?;
    if !status.success() {
        bail!("the command ended with {status}\nremedy: {remedy}");
    }
    Ok((said, began.elapsed()))
}

/// The command that runs test files in their long form, one test at a time.
fn tests(files: &[&str]) -> Command {
    let archive = format!("image/lb-agent-{}.tar", env!("CARGO_PKG_VERSION"));
    let mut cargo = shell::cargo();
    cargo
        .args(["test", "--no-fail-fast"])
        .args(binaries::selection(files))
        .env("RUST_TEST_THREADS", "1")
        .env("LB_PROVE", "1")
        .env("LB_IMAGE", workspace::target().join(archive));
    cargo
}
