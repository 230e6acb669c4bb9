//! `cargo xtask kernels`: the programs and a short topology on kernels other than this machine's.
//!
//! Debian's packaged kernels boot in emulation, each with an in-memory file system that holds only this clone's
//! binaries and the tools that they call. On a kernel without tcx links the run only verifies the programs.

use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;

use crate::kernels::guest::{Guest, Outcome};
use crate::setup::packages;
use crate::step::step;
use crate::test::binaries;
use crate::{shell, workspace};

mod guest;
mod packaged;

/// A series of kernels, the Debian suite that has it, and whether it has tcx links.
struct Series {
    version: &'static str,
    suite: &'static str,
    has_links: bool,
}

/// The kernels to try. The backports suite has no modules of 6.19 to 7.1.
const SERIES: [Series; 4] = [
    Series { version: "6.1", suite: "bookworm", has_links: false },
    Series { version: "6.12", suite: "trixie", has_links: true },
    Series { version: "6.16", suite: "trixie-backports", has_links: true },
    Series { version: "7.3", suite: "trixie-backports", has_links: true },
];

/// The root tests that run on each kernel: every fixture in the kernel, pods that use a `ClusterIP`, and the kinds of
/// interfaces and sockets that this machine's kernel may lack.
const TESTS: [(&str, &[&str]); 7] = [
    ("prog_run", &[]),
    ("topology_cards", &["card_to", "card_that", "--test-threads=1"]),
    ("topology_pod_cards", &["--test-threads=1"]),
    ("topology_cluster_ip", &["sees_the_pod", "--test-threads=1"]),
    ("topology_netkit", &["--test-threads=1"]),
    ("topology_sctp", &["--test-threads=1"]),
    ("topology_host_routes", &["--test-threads=1"]),
];

/// The selection of kernels.
#[derive(Args)]
pub(crate) struct Options {
    /// Only this series, such as 6.1
    #[arg(long)]
    only: Option<String>,
    /// Only verify the programs, without a topology
    #[arg(long)]
    verify: bool,
}

/// Boots each kernel, and prints a table of the results.
pub(crate) fn run(options: &Options) -> Result<()> {
    shell::need_root("kernels reads what packages install", "kernels")?;
    packages::ensure("emulation", &packages::EMULATION)?;
    let wanted = |series: &&Series| options.only.as_deref().is_none_or(|it| it == series.version);
    let series: Vec<&Series> = SERIES.iter().filter(wanted).collect();
    if series.is_empty() {
        let known = SERIES.map(|series| series.version).join(", ");
        bail!("no such series is packaged\nremedy: choose one of {known}");
    }
    binaries::build(&[])?;
    let tests = if options.verify { Vec::new() } else { tests()? };
    let mut rows = Vec::new();
    for Series { version, suite, has_links } in series {
        let began = Instant::now();
        let outcome = step(format!("Linux {version}"), "2 min", || {
            let kernel = packaged::fetch(version, suite, &workspace::cache()?.join("kernels"))?;
            let tests = if *has_links { tests.as_slice() } else { &[] };
            Guest::new(&kernel, tests)?.boot()
        });
        // After an error the other kernels are tried all the same.
        let outcome = outcome.unwrap_or_else(|error| {
            println!("Linux {version}: {error:#}");
            Outcome::untried()
        });
        // A kernel without tcx links is not supported, whatever its verifier accepts.
        let is_good = outcome.is_good || (!has_links && outcome.is_tried());
        rows.push((*version, is_good, outcome, began.elapsed().as_secs()));
    }
    println!(
        "\n{:<8}{:<34}{:>8}{:>7}  {:<22}{:>5}",
        "series", "release", "walked", "stack", "answers", "s"
    );
    for (version, _, Outcome { release, walked, stack, answers, .. }, seconds) in &rows {
        println!("{version:<8}{release:<34}{walked:>8}{stack:>7}  {answers:<22}{seconds:>5}");
    }
    let failed: Vec<&str> =
        rows.iter().filter(|(_, is_good, ..)| !is_good).map(|(version, ..)| *version).collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("Linux {}: see the output above", failed.join(", "))
}

/// Builds the test programs that run in a guest; returns them with their arguments.
fn tests() -> Result<Vec<guest::Test>> {
    let mut built = binaries::built(&TESTS.map(|(name, _)| name))?;
    built.retain(|binary| TESTS.iter().any(|(name, _)| *name == binary.name));
    let arguments =
        |name: &str| TESTS.iter().find(|(it, _)| *it == name).map_or(&[][..], |it| it.1);
    Ok(built
        .into_iter()
        .map(|binary| guest::Test { arguments: arguments(&binary.name), binary })
        .collect())
}
