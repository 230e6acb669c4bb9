//! `status --verbose`: all programs on the served interfaces and socket hooks in their order, and missing kernel
//! features.
//!
//! Interfaces are those of the network namespace of the command, which must be the agent's.

use std::collections::BTreeMap;
use std::path::Path;

use aya::programs::loaded_programs;

use super::Error;
use super::status::line::line;
use crate::datapath::{
    Direction, attached_programs, attached_socket_programs, find_cgroup2, pinned_programs,
    requirements,
};
use crate::maps::Maps;
use crate::node::watch::look;
use crate::syscall::device_name;

/// Adds the programs on each interface and on the socket hooks in the order in which they run, this agent's among them.
pub(super) fn attached(text: &mut String, maps: &Maps, links: &Path) -> Result<(), Error> {
    let programs = loaded_programs().filter_map(Result::ok);
    let mut names: BTreeMap<u32, String> = programs
        .map(|program| (program.id(), program.name_as_str().unwrap_or_default().to_owned()))
        .collect();
    // The kernel lists programs only with `CAP_SYS_ADMIN`, which the agent's container does not have.
    let are_listed = !names.is_empty();
    for (id, name) in pinned_programs(links.parent().unwrap_or(links)) {
        names.entry(id).or_insert(name);
    }
    let order = |programs: &[u32]| {
        let order: Vec<String> = programs.iter().map(|program| of(&names, *program)).collect();
        order.join(", ")
    };
    // A part that cannot be read must not hide the others.
    let cannot = |error: &dyn std::error::Error| format!("unknown: {error}");
    let mut say = |at: &str, place: &str, order: String| {
        line(text, "Programs", &format!("{at:<15} {place:<12} {order}"));
    };
    let mut devices = maps.devices()?;
    // A hash map has no order.
    devices.sort_by_key(|(index, _)| *index);
    let view = look();
    for (index, _) in devices {
        let name = device_name(index).unwrap_or_else(|| format!("#{index}"));
        let xdp = view.as_ref().map(|view| view.links.get(&index).map_or(0, |link| link.xdp));
        match xdp {
            Ok(0) => {}
            Ok(program) => say(&name, "xdp", order(&[program])),
            Err(error) => say(&name, "xdp", cannot(error)),
        }
        for (place, direction) in [("ingress", Direction::Ingress), ("egress", Direction::Egress)] {
            let programs = attached_programs(index, direction)
                .map(|hooked| hooked.iter().map(|it| it.program).collect::<Vec<_>>());
            let text = programs.map_or_else(|error| cannot(&error), |programs| order(&programs));
            say(&name, place, text);
        }
    }
    match attached_socket_programs(links) {
        Ok(hooks) => {
            for (hook, programs) in hooks {
                say("sockets", hook, order(&programs));
            }
        }
        Err(error) => say("sockets", "", cannot(&error)),
    }
    if !are_listed {
        line(text, "Programs", "names of programs that are not the agent's need CAP_SYS_ADMIN");
    }
    Ok(())
}

fn of(names: &BTreeMap<u32, String>, program: u32) -> String {
    match names.get(&program).map(String::as_str) {
        None | Some("") => format!("program {program}"),
        Some(name) => format!("{name} ({program})"),
    }
}

/// Adds the features that this machine lacks.
pub(super) fn machine(text: &mut String) {
    let missing = requirements(&find_cgroup2().unwrap_or_default());
    for requirement in &missing {
        line(text, "Missing", &requirement.to_string());
    }
    if missing.is_empty() {
        line(text, "Machine", "has every required feature");
    }
}
