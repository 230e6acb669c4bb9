//! `status --verbose`: who else is attached to our devices, in which order, and what this machine lacks.
//!
//! Devices are those of the namespace the command runs in, as those of the agent.

use std::collections::BTreeMap;

use aya::programs::loaded_programs;

use super::Error;
use super::status::line;
use crate::datapath::{Direction, beside, find_cgroup2, requirements};
use crate::maps::Maps;
use crate::syscall::device_name;

/// The programs of each device, ours among them, as they run.
pub(super) fn attached(text: &mut String, maps: &Maps) -> Result<(), Error> {
    let programs = loaded_programs().filter_map(Result::ok);
    let names: BTreeMap<u32, String> = programs
        .map(|program| (program.id(), program.name_as_str().unwrap_or_default().to_owned()))
        .collect();
    let mut devices = maps.devices()?;
    devices.sort_by_key(|(index, _)| *index);
    for (index, _) in devices {
        for (place, direction) in [("ingress", Direction::Ingress), ("egress", Direction::Egress)] {
            let name = device_name(index).unwrap_or_else(|| format!("#{index}"));
            let order: Vec<String> = match beside(index, direction) {
                Ok(order) => order.iter().map(|it| of(&names, it.program)).collect(),
                Err(error) => vec![format!("cannot be told: {error}")],
            };
            line(text, "Programs", &format!("{name:<15} {place:<8} {}", order.join(", ")));
        }
    }
    Ok(())
}

fn of(names: &BTreeMap<u32, String>, program: u32) -> String {
    match names.get(&program).map(String::as_str) {
        None | Some("") => format!("program {program}"),
        Some(name) => format!("{name} ({program})"),
    }
}

/// What this machine lacks.
pub(super) fn machine(text: &mut String) {
    let missing = requirements(&find_cgroup2().unwrap_or_default());
    for requirement in &missing {
        line(text, "Missing", &requirement.to_string());
    }
    if missing.is_empty() {
        line(text, "Machine", "has everything that is needed");
    }
}
