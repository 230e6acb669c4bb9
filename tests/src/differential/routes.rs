//! The routes around a node, for programs that query the kernel's routing table.
//!
//! They are those of `lb_common::fake::world`, in a network namespace that the calling thread enters for good. Test
//! runs use the loopback interface of the thread's namespace.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use lb_common::fake::world::{HOP_HARDWARE, OUT, OUT_HARDWARE, OUT_MTU, OUT_NETWORKS, ROUTES};
use nix::sched::{CloneFlags, unshare};

use super::sockets::MARK;
use crate::process::run;

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    static HAS_RULE: Cell<bool> = const { Cell::new(false) };
}

/// Moves this thread into a network namespace with these routes, once.
pub(super) fn enter() -> Result<()> {
    if IS_INSIDE.get() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWNET).context("a network namespace for this thread")?;
    let hardware = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    let mut commands = format!(
        "link set lo up
         link add out index {OUT} mtu {OUT_MTU} address {} type veth peer name far index {}
         link set out addrgenmode none
         link set far addrgenmode none
         link set far up
         link set out up\n",
        hardware(OUT_HARDWARE),
        OUT + 1
    );
    for network in OUT_NETWORKS {
        writeln!(commands, "address add {network} dev out nodad")?;
    }
    for (to, is_known) in ROUTES {
        writeln!(commands, "route add {to} dev out")?;
        if is_known {
            let hop = hardware(HOP_HARDWARE);
            writeln!(commands, "neighbour add {to} lladdr {hop} dev out nud permanent")?;
        }
    }
    let lines: Vec<&str> = commands.lines().map(str::trim).collect();
    drop(run(Command::new("ip").args(["-batch", "-"]), &lines.join("\n"))?);
    for family in ["ipv4", "ipv6"] {
        let path = format!("/proc/sys/net/{family}/conf/all/forwarding");
        fs::write(&path, "1").with_context(|| path)?;
    }
    IS_INSIDE.set(true);
    Ok(())
}

/// Gives sockets with [`MARK`] a route to every address, once.
///
/// Not every thread has this rule: with rules of its own, the lookups of a namespace take about twice as long, which a
/// benchmark would show.
pub(super) fn lead_sockets() -> Result<()> {
    if HAS_RULE.get() {
        return Ok(());
    }
    let all =
        format!("rule add fwmark {MARK} lookup {MARK}\nroute add default dev lo table {MARK}\n");
    for family in ["-4", "-6"] {
        drop(run(Command::new("ip").args([family, "-batch", "-"]), &all)?);
    }
    HAS_RULE.set(true);
    Ok(())
}
