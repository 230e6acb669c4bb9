//! `lb-agent cleanup`: removes the data path and the agent's changes of the node.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use lb_agent::cli::Cleanup;
use lb_agent::state_file::{conntrack_file, loopback_file};
use lb_agent::{datapath, node, state_file, takeover};

use super::print;

/// The agent's changes of a network namespace.
const OF_NAMESPACE: &str = "routes, nft table, settings of lo and timeouts of netfilter";

/// Removes the data path, with `--drain` only once the last flow has ended.
pub(crate) fn drain_and_cleanup(options: &Cleanup) -> Result<ExitCode> {
    let dir = &options.pins.bpf_dir;
    if options.drain {
        let within = options.timeout.map(Duration::from_secs);
        let drain = takeover::Drain { after_rules: options.after_rules, within };
        takeover::drain(dir, drain, &mut io::stdout())?;
    }
    cleanup(dir)
}

/// Removes everything, and prints what was removed.
pub(super) fn cleanup(dir: &Path) -> Result<ExitCode> {
    // The maps are held open and so outlive their pins: they show which of netfilter's entries were for frontends.
    let maps = datapath::open(dir).ok();
    let removed = datapath::cleanup(dir)?;
    if let Some(maps) = maps.as_ref().filter(|maps| datapath::is_here(maps))
        && let Err(error) = takeover::clear_conntrack(maps)
    {
        print(&format!("warning: {}\n", lb_agent::chain(&error)))?;
    }
    for pin in &removed.pins {
        print(&format!("removed {}\n", pin.display()))?;
    }
    if let Some(dir) = &removed.unmounted {
        print(&format!("unmounted {}\n", dir.display()))?;
    }
    // The rest belongs to the network namespace that was served. It stays while an agent with another directory uses
    // it.
    let is_here = maps.as_ref().is_none_or(datapath::is_here);
    let other = datapath::other_data_path(dir);
    let restores = is_here && other.is_none();
    let mut restored = if restores { restore_node(dir)? } else { Vec::new() };
    let files = state_file::remove(dir);
    restored.extend(files.iter().map(|file| format!("removed {}", file.display())));
    for line in &restored {
        print(&format!("{line}\n"))?;
    }
    if !is_here {
        print(&format!(
            "kept {OF_NAMESPACE}: of another network namespace; run this there, too (its conntrack entries \
             of Services expire)\n"
        ))?;
    } else if let Some(other) = other {
        print(&format!("kept {OF_NAMESPACE}: in use by {other}\n"))?;
    }
    if removed.pins.is_empty() && removed.unmounted.is_none() && restored.is_empty() {
        print(&format!("nothing to remove in {}\n", dir.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Undoes the changes of the network namespace. Returns one line for each.
fn restore_node(dir: &Path) -> Result<Vec<String>> {
    let mut done = Vec::new();
    // Without nftables in the kernel there is no such table.
    if takeover::remove_anchor().unwrap_or(false) {
        done.push("removed nft table inet lb-agent".to_owned());
    }
    // kube-proxy sets its timeouts of netfilter at its start only (contract 8.5), and would not set them again.
    let has_successor = !takeover::Rules::find().is_empty();
    let restored = node::host::restore(&loopback_file(dir), &conntrack_file(dir), has_successor)?;
    done.extend(restored.into_iter().map(str::to_owned));
    Ok(done)
}
