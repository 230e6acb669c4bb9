//! Expedited RCU grace periods: the kernel waits for a grace period under RTNL whenever a tcx link is made or removed.
//!
//! A normal grace period takes 8 to 60 ms, an expedited one some 30 us (ADR 0030). The switch is for the whole machine,
//! so it is on only during the system call that waits.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The switch of `synchronize_rcu()` (`rcu_expedited`, `kernel/rcu/update.c`). Kernels for one CPU have none.
const SWITCH: &str = "/sys/kernel/rcu_expedited";

/// Exists while an agent has the switch on, so that the next agent turns it off if that one was killed.
const MARKER: &str = "/run/lb-agent/rcu_expedited";

/// Threads of this process take turns, so that none turns the switch off while another one uses it.
static TURN: Mutex<()> = Mutex::new(());

/// Grace periods are expedited while this value exists.
pub(super) struct Expedited {
    is_ours: bool,
    _turn: MutexGuard<'static, ()>,
}

/// Turns expedited grace periods on. If the switch does not exist or is read-only (as `/sys` in a container), grace
/// periods keep their length.
pub(super) fn expedite() -> Expedited {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Expedited { is_ours: switch_on(Path::new(SWITCH), Path::new(MARKER)), _turn: turn }
}

/// Turns the switch on. Returns whether to turn it off afterwards: false if an administrator has turned it on.
fn switch_on(switch: &Path, marker: &Path) -> bool {
    let Ok(value) = fs::read_to_string(switch) else { return false };
    if value.trim() != "0" {
        return marker.exists();
    }
    mark(marker) && fs::write(switch, "1").is_ok()
}

fn mark(marker: &Path) -> bool {
    let is_written = || fs::write(marker, "").is_ok();
    let made = |directory| fs::create_dir_all(directory).is_ok();
    is_written() || marker.parent().is_some_and(made) && is_written()
}

fn switch_off(switch: &Path, marker: &Path) {
    if fs::write(switch, "0").is_ok() && fs::remove_file(marker).is_err() {
        // Another agent has turned it off as well.
    }
}

impl Drop for Expedited {
    fn drop(&mut self) {
        if self.is_ours {
            switch_off(Path::new(SWITCH), Path::new(MARKER));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_agents_switch_is_switched_off() {
        let directory = tempfile::tempdir().unwrap();
        let (switch, marker) =
            (directory.path().join("switch"), directory.path().join("run/marker"));
        assert!(!switch_on(&switch, &marker), "a kernel without it");
        fs::write(&switch, "1\n").unwrap();
        assert!(!switch_on(&switch, &marker), "an administrator's");
        fs::write(&switch, "0\n").unwrap();
        assert!(switch_on(&switch, &marker));
        assert_eq!(fs::read_to_string(&switch).unwrap(), "1");
        assert!(switch_on(&switch, &marker), "that of an agent that was killed");
        switch_off(&switch, &marker);
        assert_eq!(fs::read_to_string(&switch).unwrap(), "0");
        assert!(!marker.exists());
    }
}
