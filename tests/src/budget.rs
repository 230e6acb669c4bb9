//! The cost of the programs in the kernel, compared with the numbers of `tests/budget.toml`.
//!
//! Instructions and sizes may exceed their number by a tenth, because kernels differ. Map sizes and stack depth may not
//! grow. No program may exceed [`CEILINGS`].

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use aya::Ebpf;
use aya::maps::{Map, MapData, MapInfo, MapType};
use aya::programs::{Program, ProgramInfo};
use lb_agent::datapath::{self, PacketLog};

use crate::differential::bpf;

mod parameters;
mod stack;

/// The percentage by which instructions and sizes may exceed their number.
const DRIFT: u64 = 10;

const HEAD: &str = "\
# The cost of each program and map in the kernel: `cargo xtask verify` compares it, `--bless` writes it.
# verified: instructions the verifier walked. translated, jitted: bytes of the program.
# stack: bytes of the deepest chain of calls (the verifier allows 512).
# entry_bytes: key and value of one entry; full_kib: all entries (per CPU where
# they are per CPU), with the sizes an agent gives them by default.
";

/// The limit for the instructions that any kernel's verifier walks for one program; a kernel gives up after a million.
const MOST_WALKED: u32 = 400_000;
/// The limit for the stack bytes of a program on any kernel, of the 512 that exist.
const DEEPEST: u32 = 448;

/// The limits of a program on the kernel of a development machine, whatever `budget.toml` holds: half of the
/// instructions and three quarters of the stack that `edge_ingress` needed before ADR 0040 (196,173 and 512), and
/// 40 KiB of machine code, as ADR 0044 reached.
const CEILINGS: [(&str, u64); 3] = [(".verified", 98_086), (".jitted", 40_960), (".stack", 384)];

type Figures = BTreeMap<String, u64>;

/// Loads every program, prints its figures, and compares them with `file`, or writes them there if `bless`.
///
/// Errors: a figure above its number in `file`; a figure above [`CEILINGS`], also with `bless`; a function with too
/// many parameters.
pub fn verify(file: &Path, bless: bool, out: &mut impl Write) -> Result<()> {
    let many = parameters::too_many(datapath::object())?;
    ensure!(many.is_empty(), "Linux 7.3 refuses functions of programs:\n  {}", many.join("\n  "));
    let mut ebpf = PacketLog::Off.loader().load(datapath::object()).context("load the object")?;
    let mut figures = programs(&mut ebpf, out)?;
    figures.extend(maps(&ebpf, out)?);
    let above = above_ceilings(&figures);
    ensure!(above.is_empty(), "programs are too large:\n  {}", above.join("\n  "));
    if bless {
        let lines = figures.iter().map(|(name, number)| format!("{name} = {number}\n"));
        let text = HEAD.to_owned() + &lines.collect::<String>();
        return fs::write(file, text).with_context(|| format!("write {}", file.display()));
    }
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let problems = differences(&parse(&text)?, &figures);
    ensure!(problems.is_empty(), "against {}:\n  {}", file.display(), problems.join("\n  "));
    Ok(())
}

/// Loads every program into a kernel without committed figures, and prints the figures of its verifier.
///
/// A refused program does not stop the others from being loaded. The error names every program that was refused or that
/// exceeds the limits for any kernel.
pub fn survey(out: &mut impl Write) -> Result<()> {
    let mut ebpf = PacketLog::Off.loader().load(datapath::object()).context("load the object")?;
    let mut names: Vec<String> = ebpf.programs().map(|(name, _)| name.to_owned()).collect();
    names.sort();
    let mut problems = Vec::new();
    for name in names {
        match ebpf.program_mut(&name).context("a program").and_then(weigh) {
            Ok((walked, stack)) => {
                writeln!(out, "{name:<20}{walked:>10}{stack:>8}")?;
                if walked > MOST_WALKED || stack > DEEPEST {
                    problems.push(format!(
                        "{name} exceeds {MOST_WALKED} instructions or {DEEPEST} stack bytes"
                    ));
                }
            }
            Err(error) => {
                writeln!(out, "{name:<20}   refused")?;
                problems.push(format!("{name}: {}", end_of(&format!("{error:#}"))));
            }
        }
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

/// Walked instructions and stack bytes of one program.
fn weigh(program: &mut Program) -> Result<(u32, u32)> {
    let info = load(program)?;
    let walked = info.verified_instruction_count().context("a kernel that counts")?;
    Ok((walked, stack::depth(&bpf::instructions(program.fd()?.as_fd())?)))
}

/// The last lines of a verifier log, without the table of functions that Linux 7.3 adds.
fn end_of(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("subprog ")).collect();
    lines.get(lines.len().saturating_sub(30)..).unwrap_or_default().join("\n")
}

fn programs(ebpf: &mut Ebpf, out: &mut impl Write) -> Result<Figures> {
    let mut figures = Figures::new();
    writeln!(
        out,
        "{:<20}{:>10}{:>12}{:>10}{:>8}",
        "program", "verified", "translated", "jitted", "stack"
    )?;
    let mut names: Vec<String> = ebpf.programs().map(|(name, _)| name.to_owned()).collect();
    names.sort();
    for name in names {
        let program = ebpf.program_mut(&name).with_context(|| format!("program {name}"))?;
        let info = load(program).with_context(|| format!("program {name}"))?;
        let verified = info.verified_instruction_count().context("a kernel that counts")?;
        let translated = info.size_translated().context("a kernel that shows programs")?;
        let jitted = info.size_jitted();
        let instructions = bpf::instructions(program.fd()?.as_fd())?;
        let stack = stack::depth(&instructions);
        writeln!(out, "{name:<20}{verified:>10}{translated:>12}{jitted:>10}{stack:>8}")?;
        for (what, number) in [
            ("verified", verified),
            ("translated", translated),
            ("jitted", jitted),
            ("stack", stack),
        ] {
            let _new: Option<u64> = figures.insert(format!("{name}.{what}"), number.into());
        }
    }
    Ok(figures)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "aya knows many kinds, we use few")]
fn load(program: &mut Program) -> Result<ProgramInfo> {
    match program {
        Program::Xdp(xdp) => xdp.load()?,
        Program::SchedClassifier(classifier) => classifier.load()?,
        Program::CgroupSockAddr(socket) => socket.load()?,
        _ => bail!("unknown kind of program"),
    }
    Ok(program.info()?)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "aya knows many kinds, we use few")]
fn maps(ebpf: &Ebpf, out: &mut impl Write) -> Result<Figures> {
    let mut figures = Figures::new();
    writeln!(out, "{:<20}{:>10}{:>12}{:>10}", "map", "bytes", "entries", "KiB full")?;
    let mut found: Vec<(&str, MapInfo)> = Vec::new();
    for (name, map) in ebpf.maps() {
        // Maps with these names are sections of constants, which are part of the programs.
        if !name.starts_with('.') {
            found.push((name, data(map).with_context(|| format!("map {name}"))?.info()?));
        }
    }
    found.sort_by_key(|(name, _)| *name);
    for (name, info) in found {
        let entries = u64::from(info.max_entries());
        let (key, value) = (u64::from(info.key_size()), u64::from(info.value_size()));
        let (bytes, full) = match info.map_type()? {
            // The capacity of a ring buffer counts bytes, not entries. A socket storage map has one entry for each
            // call.
            MapType::RingBuf => (0, entries),
            _ => (key + value, (key + value) * entries),
        };
        let full = full.div_ceil(1024);
        writeln!(out, "{name:<20}{bytes:>10}{entries:>12}{full:>10}")?;
        let _new: Option<u64> = figures.insert(format!("{name}.entry_bytes"), bytes);
        let _new: Option<u64> = figures.insert(format!("{name}.full_kib"), full);
    }
    Ok(figures)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "aya knows many kinds, we use few")]
fn data(map: &Map) -> Result<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::LpmTrie(data)
        | Map::PerCpuArray(data)
        | Map::ProgramArray(data)
        | Map::RingBuf(data)
        | Map::SkStorage(data) => Ok(data),
        _ => bail!("unknown kind of map"),
    }
}

fn parse(text: &str) -> Result<Figures> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, number) = line.split_once(" = ").with_context(|| format!("line {line}"))?;
            Ok((name.to_owned(), number.parse().with_context(|| format!("line {line}"))?))
        })
        .collect()
}

fn differences(budget: &Figures, figures: &Figures) -> Vec<String> {
    let gone = budget.keys().filter(|name| !figures.contains_key(*name));
    let gone = gone.map(|name| format!("{name} no longer exists"));
    let moved = figures.iter().filter_map(|(name, number)| match budget.get(name) {
        None => Some(format!("{name} is new: {number}")),
        Some(wanted) if is_fixed(name) && number > wanted => {
            Some(format!("{name} is {number}, over {wanted}"))
        }
        Some(wanted) if number * 100 > wanted * (100 + DRIFT) => {
            Some(format!("{name} is {number}, over {wanted} by more than {DRIFT} %"))
        }
        Some(_) => None,
    });
    gone.chain(moved).collect()
}

/// The figures that exceed [`CEILINGS`].
fn above_ceilings(figures: &Figures) -> Vec<String> {
    let ceiling = |name: &str| CEILINGS.iter().find(|(end, _)| name.ends_with(end));
    let above = figures.iter().filter_map(|(name, number)| {
        let (_, most) = ceiling(name)?;
        (number > most).then(|| format!("{name} is {number}, over {most}"))
    });
    above.collect()
}

/// Whether a figure may not grow without `--bless`.
fn is_fixed(name: &str) -> bool {
    [".entry_bytes", ".full_kib", ".stack"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::{above_ceilings, differences, parse};

    #[test]
    fn drift_passes_and_growth_does_not() {
        let budget = parse("# text\na.verified = 100\nM.entry_bytes = 8\n").expect("lines");
        let now = |text| differences(&budget, &parse(text).expect("lines")).len();
        assert_eq!(now("a.verified = 110\nM.entry_bytes = 8"), 0);
        assert_eq!(now("a.verified = 50\nM.entry_bytes = 8"), 0);
        assert_eq!(now("a.verified = 111\nM.entry_bytes = 8"), 1);
        assert_eq!(now("a.verified = 100\nM.entry_bytes = 9"), 1);
        assert_eq!(now("b.verified = 100\nM.entry_bytes = 8"), 2);
    }

    #[test]
    fn ceilings_hold_for_programs_alone() {
        let above = |text| above_ceilings(&parse(text).expect("lines")).len();
        let most = "a.verified = 98086\na.jitted = 40960\na.stack = 384";
        assert_eq!(above(most), 0);
        assert_eq!(above("a.verified = 98087\na.jitted = 40961\na.stack = 385"), 3);
        assert_eq!(above("a.translated = 100000\nM.full_kib = 100000"), 0);
    }
}
