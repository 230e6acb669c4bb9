//! Expedited grace periods: the kernel waits for one under RTNL whenever a tcx link comes or goes.
//!
//! A usual grace period takes 8 to 60 ms, an expedited one some 30 us (ADR 0030). The switch is one for the
//! whole machine, so it is on only during the system call that waits.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The switch of `synchronize_rcu()` (`kernel/rcu/update.c`, `rcu_expedited`). Kernels for one CPU have none.
const SWITCH: &str = "/sys/kernel/rcu_expedited";

/// Exists while an agent has switched it on, so that one that was killed meanwhile is made up for.
const MARKER: &str = "/run/lb-agent/rcu_expedited";

/// Threads of this process take turns, so that none switches off what another one uses.
static TURN: Mutex<()> = Mutex::new(());

/// Grace periods are expedited for as long as it lives.
pub(super) struct Expedited {
    is_ours: bool,
    _turn: MutexGuard<'static, ()>,
}

/// Switches expedited grace periods on. Without the switch, or where it may not be written (a container whose
/// `/sys` is read-only), grace periods stay as long as they are.
pub(super) fn expedite() -> Expedited {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Expedited { is_ours: switch_on(Path::new(SWITCH), Path::new(MARKER)), _turn: turn }
}

/// Whether it is to be switched off afterwards: false where an administrator wants it on.
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
        // Another agent switched it off, too.
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
