//! Random tables and random packets (valid, mutated, hostile) through host and kernel.

use anyhow::{Context as _, Result, bail};
use lb_common::fake::{Fake, Step, run as run_here};

use super::{Difference, Kernel, compare};

mod ends;
mod generator;
mod packet;
mod steps;
mod summary;
mod tables;

pub use generator::Random;
use steps::{conversation, conversation_of_host, step};
pub use summary::Summary;
use tables::{lose_a_frontend, tables};

/// The number of packets that share tables.
const BATCH: u64 = 64;

/// The tables and packets of one seed.
pub fn batch(seed: u64, capacity: usize) -> (Fake, Vec<Step>) {
    let mut random = Random::new(seed);
    let mut tables = tables(&mut random, capacity);
    let mut seen: Vec<Vec<u8>> = Vec::new();
    if random.one_in(3) {
        for _ in 0..BATCH {
            let step = step(&mut random, &seen);
            seen.push(run_here(&step, &tables).1);
        }
        lose_a_frontend(&mut random, &mut tables);
    }
    let here = tables.clone();
    let mut steps = Vec::new();
    // Several clients, so that small ranges of source ports run out.
    for _ in 0..random.of(&[0, 0, 1, 3]) {
        steps.extend(conversation(&mut random, &here));
        steps.extend(conversation_of_host(&mut random, &here));
    }
    seen.extend(steps.iter().map(|step| step.packet.clone()));
    while (steps.len() as u64) < BATCH {
        let step = step(&mut random, &seen);
        seen.push(run_here(&step, &here).1);
        steps.push(step);
    }
    (tables, steps)
}

/// Runs `packets` random packets from `seed` on. A difference is an error that contains a minimised case.
pub fn run(packets: u64, seed: u64) -> Result<Summary> {
    let mut kernels = [(6, Kernel::new(6)?), (4096, Kernel::new(4096)?)];
    let mut summary = Summary::default();
    for number in 0..packets.div_ceil(BATCH) {
        let seed = Random::new(seed.wrapping_add(number << 32)).next();
        let (capacity, kernel) = &mut kernels[usize::from(number % 4 != 0)];
        let (tables, steps) = batch(seed, *capacity);
        let outcome = compare(kernel, &tables, &steps, false)
            .with_context(|| format!("batch seed {seed}"))?;
        if let Some(Difference { what }) = &outcome.difference {
            bail!("batch seed {seed}: {what}\n{}", smallest(kernel, &tables, steps)?);
        }
        summary.add(&outcome);
    }
    Ok(summary)
}

/// Removes every packet that is not needed for the difference, and prints the rest as a fixture.
fn smallest(kernel: &mut Kernel, tables: &Fake, mut steps: Vec<Step>) -> Result<String> {
    let mut index = 0;
    while index < steps.len() {
        let mut fewer = steps.clone();
        drop(fewer.remove(index));
        if compare(kernel, tables, &fewer, true)?.difference.is_some() {
            steps = fewer;
        } else {
            index += 1;
        }
    }
    let what = compare(kernel, tables, &steps, true)?.difference.map(|difference| difference.what);
    let what = what.unwrap_or_else(|| String::from("no difference when run again"));
    Ok(format!("{what}\nFixture {{ tables: {tables:#?}, steps: {steps:#?} }}"))
}
